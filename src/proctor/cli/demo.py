"""``proctor demo``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from proctor.cli.failures import FAILED, INTERRUPTED
from proctor.cli.lifetime import on_stop_request
from proctor.cli.options import json_option
from proctor.demo import report, story, subject
from proctor.errors import UsageError


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep database and history here; a new temporary folder when absent.",
)
@json_option
def demo(path: Path | None, folder: Path | None, *, as_json: bool) -> int:
    """Run a real workflow over the files of PATH whose stuck handlers are killed, and show the proofs.

    PATH is a file or a folder; the interpreter's own standard library when absent. At most 200 files are used.
    """
    chosen = subject.choose(path.absolute() if path is not None else None)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise UsageError(f"folder '{folder}' cannot be made: {exc.strerror}") from exc
    show = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    told = trio.run(_told, chosen, folder, show)
    if as_json:
        print(json.dumps(told))
    else:
        print("\n".join(report.report_lines(told)))
    if told["error"] is not None:
        print(f"proctor: the demo's run failed: {told['error']}", file=sys.stderr)
    return FAILED if told["error"] is not None or told["leftover_processes"] else 0


async def _told(chosen: subject.Subject, folder: Path | None, show: Callable[[str], None]) -> dict[str, Any]:
    """Tell the story; a signal stops what runs, in order, and then interrupts the command. Another one ends it now.

    Signals are received, for a KeyboardInterrupt that Python raises in a callback of its own is lost: the demo would
    go on.
    """
    told: dict[str, Any] | None = None
    async with trio.open_nursery() as nursery:
        # What was started ends with our end of its standard input.
        end_now = partial(os._exit, INTERRUPTED)
        await nursery.start(partial(on_stop_request, nursery.cancel_scope.cancel, end_now, until_eof=False))
        told = await story.tell(chosen, folder=folder, show=show)
        nursery.cancel_scope.cancel()
    if told is None:
        raise KeyboardInterrupt
    return told
