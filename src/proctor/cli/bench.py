"""``proctor bench``: every suite, or one of them as a subcommand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import trio

from proctor.bench import report
from proctor.bench.replay import suite as replay_suite
from proctor.bench.server import suite as server_suite
from proctor.bench.supervisor import suite as supervisor_suite
from proctor.cli.failures import FAILED
from proctor.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])
_Run = Callable[[], Awaitable[report.Report]]


def _common_options(command: _F) -> _F:
    command = click.option(
        "--quick", is_flag=True, help="Measure little: it shows that all works, its numbers mean little."
    )(command)
    command = click.option(
        "--rounds", type=click.IntRange(min=1), help="How often each probe runs; 3 or 5, and 1 with --quick."
    )(command)
    return click.option(
        "--json",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Also write the report to this file as one JSON object.",
    )(command)


_peers_option = click.option(
    "--peers", is_flag=True, help="Also measure the peers that are installed (pip install 'proctor[bench]')."
)


@click.group(invoke_without_command=True)
@_peers_option
@_common_options
@click.pass_context
def bench(ctx: click.Context, file: Path | None, rounds: int | None, *, peers: bool, quick: bool) -> int:
    """Measure Proctor on this machine, against floors and peers. A missed target is shown, not an error.

    Without a subcommand every suite runs, one after the other.
    """
    if ctx.invoked_subcommand is not None:
        if file is not None or rounds is not None or peers or quick:
            raise UsageError(f"options stand after the name of the suite: proctor bench {ctx.invoked_subcommand} ...")
        return 0
    suites = [
        partial(supervisor_suite.run, rounds=rounds, quick=quick, peers=peers, seed=None, show=_show),
        partial(replay_suite.run, rounds=rounds, quick=quick, show=_show),
        partial(server_suite.run, rounds=rounds, quick=quick, show=_show),
    ]
    return _measure(file, suites, lambda reports: {"format": report.FORMAT, "suites": reports})


@bench.command()
@_peers_option
@_common_options
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the random instants, as an earlier report shows it.")
def supervisor(file: Path | None, rounds: int | None, seed: int | None, *, peers: bool, quick: bool) -> int:
    """Measure the supervisor: round trips, rates, stops, orphans, memory, payloads.

    Exit code 1 only when a probe broke; the report says which, and why.
    """
    return _measure_one(
        file, partial(supervisor_suite.run, rounds=rounds, quick=quick, peers=peers, seed=seed, show=_show)
    )


@bench.command()
@_common_options
def replay(file: Path | None, rounds: int | None, *, quick: bool) -> int:
    """Measure replay: how its cost grows with the history, and the official replayer where it is installed.

    Exit code 1 only when a probe broke; the report says which, and why.
    """
    return _measure_one(file, partial(replay_suite.run, rounds=rounds, quick=quick, show=_show))


@bench.command()
@_common_options
def server(file: Path | None, rounds: int | None, *, quick: bool) -> int:
    """Measure a worker's pace on the embedded server, the official one's where it is installed, and the server's costs.

    Exit code 1 only when a probe broke; the report says which, and why.
    """
    return _measure_one(file, partial(server_suite.run, rounds=rounds, quick=quick, show=_show))


def _measure_one(file: Path | None, run: _Run) -> int:
    return _measure(file, [run], lambda reports: reports[0])


def _measure(file: Path | None, runs: Sequence[_Run], join: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> int:
    if file is not None:
        _require_writable(file)
    found = []
    for run in runs:
        found.append(trio.run(run))
        print("\n".join([*([""] if len(found) > 1 else []), *report.as_lines(found[-1])]), flush=True)
    if file is not None:
        file.write_text(json.dumps(join([report.as_json(one) for one in found]), indent=2) + "\n")
    return 0 if all(one.is_whole for one in found) else FAILED


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _require_writable(file: Path) -> None:
    """Refuse before minutes of measuring, not after."""
    target = file if file.exists() else file.absolute().parent
    if not os.access(target, os.W_OK):
        raise UsageError(f"file '{file}' cannot be written; give a path in a folder that exists and is yours")
