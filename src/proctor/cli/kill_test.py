"""``proctor kill-test``."""

from __future__ import annotations

import json
import os
import random
import sys
from functools import partial
from pathlib import Path

import click
import trio

from proctor.cli.failures import FAILED
from proctor.cli.options import log_to_stderr
from proctor.errors import UsageError
from proctor.harness.rounds import Round, kill_test
from proctor.harness.scenarios import SCENARIOS
from proctor.harness.subject import Subject


@click.command("kill-test")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO...]")
@click.option("--list", "show_list", is_flag=True, help="List the scenarios and what each proves.")
@click.option("--module", help="Module of your own handler.")
@click.option("--handler", help="Its name in that module; needs --module.")
@click.option("--args", "arguments", default="[]", show_default=True, help="What to call it with: a JSON array.")
@click.option("--timeout", default=30.0, show_default=True, help="Seconds that one attempt may take.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1), help="Kills in each scenario.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the random instants, as an earlier run printed it.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report here.")
def command(
    scenarios: tuple[str, ...],
    module: str | None,
    handler: str | None,
    arguments: str,
    timeout: float,
    rounds: int,
    seed: int | None,
    file: Path | None,
    *,
    show_list: bool,
) -> int:
    """Kill children, supervisors, workers and servers at random instants, and prove that nothing is left.

    Without --module and --handler the victim is a handler of our own, which blocks and starts processes. Exit code 1
    if a promise broke; the seed that is printed first repeats the run.
    """
    if show_list:
        for name, scenario in SCENARIOS.items():
            click.echo(f"{name:14} {(scenario.__doc__ or '').strip()}")
        return 0
    log_to_stderr()
    subject = _subject(module, handler, arguments, timeout)
    seed = random.randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}; handler {subject.handler}")
    report = trio.run(partial(kill_test, subject, scenarios, rounds=rounds, seed=seed, on_round=_show))
    if file is not None:
        try:
            file.write_text(json.dumps(report.as_json(), indent=2) + "\n")
        except OSError as exc:
            raise UsageError(f"the report cannot be written to {file}: {exc.strerror}") from exc
    kills = len([one for one in report.rounds if one.number])
    if not report.broken:
        click.echo(f"{kills} kills, every promise held, nothing is left")
        return 0
    click.echo(f"{kills} kills, {len(report.broken)} promises broken (seed {seed}):")
    for broken in report.broken:
        click.echo(f"  {broken}")
    return FAILED


def _subject(module: str | None, handler: str | None, arguments: str, timeout: float) -> Subject:
    if (module is None) != (handler is None):
        raise UsageError("--module and --handler belong together")
    try:
        values = json.loads(arguments)
    except ValueError as exc:
        raise UsageError(f"--args is not JSON: {exc}") from exc
    if not isinstance(values, list):
        raise UsageError("--args is a JSON array, such as '[1, \"two\"]'")
    if module is None:
        return Subject(arguments=tuple(values), timeout=timeout)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return Subject(f"{module}:{handler}", tuple(values), timeout)


def _show(done: Round) -> None:
    verdict = "ok" if not done.broken else "BROKEN"
    click.echo(f"  {done.scenario} #{done.number} at {done.delay * 1000:.1f} ms: {done.happened}: {verdict}")
