"""``proctor demo``."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click
import trio

from proctor.cli.failures import FAILED
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
    told = trio.run(partial(story.tell, chosen, folder=folder, show=show))
    if as_json:
        print(json.dumps(told))
    else:
        print("\n".join(report.report_lines(told)))
    if told["error"] is not None:
        print(f"proctor: the demo's run failed: {told['error']}", file=sys.stderr)
    return FAILED if told["error"] is not None or told["leftover_processes"] else 0
