"""``proctor worker``."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any, Literal

import click
import trio

from proctor.cli import loading
from proctor.cli.lifetime import on_stop_request
from proctor.cli.options import json_option, log_to_stderr, make_client, server_options, until_eof_option
from proctor.worker import Worker
from proctor_supervisor import OutputLine, SupervisorOptions


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@server_options
@click.option("--queue", required=True, help="Task queue to poll.")
@click.option(
    "--profile",
    default="supervised",
    show_default=True,
    help="What to negotiate, exactly one: supervised (protocol 1.20) or ordinary (1.18, 1.19).",
)
@click.option("--children", default=4, show_default=True, type=click.IntRange(min=1), help="Attempts at once.")
@click.option(
    "--queued", default=0, show_default=True, type=click.IntRange(min=0), help="Queued activities at once, besides."
)
@click.option("--isolation", default="fresh", show_default=True, type=click.Choice(["fresh", "reuse"]))
@click.option("--worker-id", help="Identity and lease owner, unique among running workers; made up when absent.")
@click.option("--build-id", help="Registered for compatibility routing.")
@click.option(
    "--grace", default=30.0, show_default=True, type=click.FloatRange(min=0), help="Seconds attempts may take to drain."
)
@json_option
@until_eof_option
def worker(
    modules: tuple[str, ...],
    server: str,
    namespace: str,
    queue: str,
    profile: str,
    children: int,
    queued: int,
    isolation: Literal["fresh", "reuse"],
    worker_id: str | None,
    build_id: str | None,
    grace: float,
    *,
    as_json: bool,
    until_eof: bool,
) -> None:
    """Run the workflows and activities that each MODULE registers.

    SIGTERM or Ctrl-C drains: no new task is taken, running attempts get --grace seconds. A second one stops now; every
    child is proven gone before the command returns. With --json each event is one JSON object on a line.
    """
    log_to_stderr()
    registered = loading.load(modules)
    show = _show_json if as_json else _show_text
    runner = Worker(
        make_client(server, namespace),
        task_queue=queue,
        workflows=registered.workflows,
        activities=registered.activities,
        profile=profile,
        supervisor=SupervisorOptions(children=children, isolation=isolation, preload=list(modules)),
        worker_id=worker_id,
        build_id=build_id,
        drain_grace=grace,
        queued_activities=queued,
        on_event=show,
        on_output=_show_output,
    )
    trio.run(_run, runner, until_eof)


async def _run(runner: Worker, until_eof: bool) -> None:
    async with trio.open_nursery() as nursery:
        work = trio.CancelScope()
        await nursery.start(partial(on_stop_request, runner.drain, work.cancel, until_eof=until_eof))
        with work:
            await runner.run()
        nursery.cancel_scope.cancel()


def _show_json(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _show_text(event: dict[str, Any]) -> None:
    match event.get("event"):
        case "registered":
            print(f"worker {event.get('worker_id')} polls queue '{event.get('task_queue')}'", flush=True)
        case "attempt_ended":
            stop = event.get("stop") or {}
            why = f", stopped: {stop.get('reason')}" if stop else ""
            print(
                f"{event.get('activity')} attempt {event.get('attempt')}: {event.get('outcome')} "
                f"after {event.get('duration_ms')} ms{why}",
                flush=True,
            )
        case "draining":
            print("draining: no new task is taken", flush=True)
        case _:
            return


def _show_output(line: OutputLine) -> None:
    print(f"[{line.attempt_id}] {line.text}", file=sys.stderr, flush=True)
