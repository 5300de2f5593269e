"""One demo from start to end: choose, start the household, run the workflow, stop everything, look for leftovers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from proctor.client import Client
from proctor.demo import report
from proctor.demo.household import QUEUE, Event, Household
from proctor.demo.subject import Subject
from proctor.errors import ProctorError, WorkflowFailed

_WORKFLOW = "proctor.demo"
_RUN_SECONDS = 120.0


async def tell(subject: Subject, *, folder: Path | None, show: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo and give its story as plain JSON values; `show` gets a line as each thing happens.

    `folder` holds database and history afterwards; by default a new temporary one. The keys: `result` (None when the
    run failed, then `error` says why), `attempts`, `leftover_processes`, `workflow_id`, `duration_ms`, `database`,
    `history_file`. Raises ProctorError when the demo itself could not go on.
    """
    started = time.monotonic()
    place = folder if folder is not None else Path(tempfile.mkdtemp(prefix="proctor-demo-"))
    database, history_file = place / "demo.db", place / "history.json"
    attempts: list[dict[str, Any]] = []

    def on_event(event: Event) -> None:
        if event.get("event") == "attempt_ended":
            attempts.append(
                {
                    name: event.get(name)
                    for name in ("activity", "attempt", "outcome", "timeout_kind", "duration_ms", "stop")
                }
            )
        line = report.progress_line(event)
        if line is not None:
            show(line)

    household = Household(database, on_event=on_event, on_notice=lambda text: show(f"  {text}"))
    result, error, workflow_id = None, None, f"demo-{time.time_ns():x}"
    # Two nurseries, so that the worker is stopped first: it still has to tell the server that it leaves.
    async with trio.open_nursery() as outer:
        await outer.start(household.keep_server)
        show(f"server {household.url}, queue '{QUEUE}', run '{workflow_id}'")
        show(f"{len(subject.files)} files of {subject.root}")
        async with trio.open_nursery() as inner, Client(household.url) as client:
            inner.start_soon(household.keep_worker)
            handle = await client.start_workflow(_WORKFLOW, [subject.plan()], task_queue=QUEUE, workflow_id=workflow_id)
            try:
                with trio.fail_after(_RUN_SECONDS):
                    result = await handle.result()
            except WorkflowFailed as failed:
                error = str(failed)
            except trio.TooSlowError:
                raise ProctorError(
                    f"the demo's run did not end within {_RUN_SECONDS:g} s; its history lies in {database}"
                ) from None
            events = await handle.history()
            household.stop()
            inner.cancel_scope.cancel()
        outer.cancel_scope.cancel()
    history_file.write_text(json.dumps({"workflow_id": workflow_id, "events": events}, indent=2) + "\n")
    left = await household.leftovers()
    for process in left:
        show(f"  left behind: {process}")
    return {
        "result": result,
        "error": error,
        "attempts": attempts,
        "leftover_processes": len(left),
        "workflow_id": workflow_id,
        "skipped_files": list(subject.skipped),
        "duration_ms": round((time.monotonic() - started) * 1000),
        "database": str(database),
        "history_file": str(history_file),
    }
