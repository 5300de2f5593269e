"""``proctor bench``: one subcommand for each suite."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import click
import trio

from proctor.bench import report
from proctor.bench.replay import suite as replay_suite
from proctor.bench.server import suite as server_suite
from proctor.bench.supervisor import suite
from proctor.cli.failures import FAILED
from proctor.errors import UsageError


@click.group()
def bench() -> None:
    """Measure Proctor on this machine, against floors and peers. A missed target is shown, not an error."""


@bench.command()
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report to this file as one JSON object.",
)
@click.option("--peers", is_flag=True, help="Also measure the peers that are installed (pip install 'proctor[bench]').")
@click.option("--rounds", type=click.IntRange(min=1), help="How often each probe runs; 5, and 1 with --quick.")
@click.option("--quick", is_flag=True, help="Measure little: it shows that all works, its numbers mean little.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the random instants, as an earlier report shows it.")
def supervisor(file: Path | None, rounds: int | None, seed: int | None, *, peers: bool, quick: bool) -> int:
    """Measure the supervisor: round trips, rates, stops, orphans, memory, payloads.

    Exit code 1 only when a probe broke; the report says which, and why.
    """
    return _measure(file, partial(suite.run, rounds=rounds, quick=quick, peers=peers, seed=seed, show=_show))


@bench.command()
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report to this file as one JSON object.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="How often each probe runs; 5, and 1 with --quick.")
@click.option("--quick", is_flag=True, help="Measure little: it shows that all works, its numbers mean little.")
def replay(file: Path | None, rounds: int | None, *, quick: bool) -> int:
    """Measure replay: how its cost grows with the history, and the official replayer where it is installed.

    Exit code 1 only when a probe broke; the report says which, and why.
    """
    return _measure(file, partial(replay_suite.run, rounds=rounds, quick=quick, show=_show))


@bench.command()
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report to this file as one JSON object.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="How often each probe runs; 3, and 1 with --quick.")
@click.option("--quick", is_flag=True, help="Measure little: it shows that all works, its numbers mean little.")
def server(file: Path | None, rounds: int | None, *, quick: bool) -> int:
    """Measure a worker's pace on the embedded server, the official one's where it is installed, and the server's costs.

    Exit code 1 only when a probe broke; the report says which, and why.
    """
    return _measure(file, partial(server_suite.run, rounds=rounds, quick=quick, show=_show))


def _measure(file: Path | None, run: Callable[[], Awaitable[report.Report]]) -> int:
    if file is not None:
        _require_writable(file)
    found = trio.run(run)
    print("\n".join(report.as_lines(found)))
    if file is not None:
        file.write_text(json.dumps(report.as_json(found), indent=2) + "\n")
    return 0 if found.is_whole else FAILED


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _require_writable(file: Path) -> None:
    """Refuse before minutes of measuring, not after."""
    target = file if file.exists() else file.absolute().parent
    if not os.access(target, os.W_OK):
        raise UsageError(f"file '{file}' cannot be written; give a path in a folder that exists and is yours")
