"""What time alone brings about in a run: its deadlines, its cleanup deadline, its timers.

Called before every operation on a run and by the deadline sweep, so that no answer is given on behalf of a run whose
time is over, and a timer fires for whoever looks first.
"""

from __future__ import annotations

from proctor.core.instants import format_instant
from proctor.server.rules import signal_waits, timers, waits
from proctor.server.rules.activities import fence
from proctor.server.rules.book import RunBook
from proctor.server.rules.queued import ending
from proctor.server.rules.runs import close, close_as_cancelled
from proctor.server.rules.steps import ActivityCall, ChildCall, SignalWait, Step, Timer, due_at


def enforce_deadlines(book: RunBook) -> None:
    """Close the run when its run, execution or cleanup deadline has passed; otherwise resolve what is due in it.

    When several of these have passed, for example while no server ran, the earliest one has ended the run.
    """
    if book.run.is_closed or _close_when_over(book):
        return
    due: list[tuple[object, Step]] = []
    for step in book.open_steps():
        instant = due_at(step)
        if instant is not None and instant <= book.now:
            due.append((instant, step))
    for _, step in sorted(due, key=lambda pair: (pair[0], pair[1].sequence)):
        # Resolving one step may have closed others, for example the losers of a selection.
        current = book.steps[step.sequence]
        if not current.is_open:
            continue
        if isinstance(current, Timer):
            timers.fire(book, current)
        elif isinstance(current, ActivityCall):
            ending.expire(book, current)
        elif isinstance(current, SignalWait):
            signal_waits.time_out(book, current)
        elif not isinstance(current, ChildCall):
            waits.time_out(book, current)


def _close_when_over(book: RunBook) -> bool:
    run = book.run
    deadlines = {
        "execution": run.execution_deadline_at,
        "run": run.run_deadline_at,
        "cleanup": None if run.cancellation is None else run.cancellation.cleanup_deadline_at,
    }
    passed = [(instant, kind) for kind, instant in deadlines.items() if instant is not None and instant <= book.now]
    if not passed:
        return False
    deadline, kind = min(passed, key=lambda pair: pair[0])
    if kind == "cleanup":
        for execution in book.open_executions():
            fence(book, execution, task_id=None)
        close_as_cancelled(book, task_id=None)
        return True
    close(
        book,
        status="failed",
        reason="timed_out",
        event_type="WorkflowTimedOut",
        payload={
            "timeout_kind": kind,
            "deadline_at": format_instant(deadline),
            "message": f"the {kind} timeout passed before the workflow ended",
        },
    )
    return True
