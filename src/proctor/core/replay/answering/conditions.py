"""Condition waits: matching them with their recorded openings, and evaluating predicates (events.md §7).

One logical wait may be opened several times in history, once per receiver that did not satisfy it; a wait whose
predicate is already true leaves no trace at all.
"""

from __future__ import annotations

from proctor.core.replay.answering.answers import WAIT, Answer, Fail, Outcome
from proctor.core.replay.answering.boundaries import at_call, pending_delivery
from proctor.core.replay.answering.matching import same_wait, wait_mismatch
from proctor.core.replay.answering.run import Replaying
from proctor.core.replay.authoring.commands import WaitCondition
from proctor.core.replay.authoring.placing import Placed
from proctor.core.replay.authoring.wire_form import operation, refuse_async
from proctor.core.replay.body import Raised, Returned
from proctor.core.replay.recorded.steps import WaitStep

_PREFIX = "wait_condition predicate raised: "


def answer_wait(run: Replaying, command: WaitCondition) -> Outcome:
    """Answer a condition wait from history, or by its predicate."""
    opened = run.cursor.wait
    if opened is None or wait_mismatch(command, opened) is not None or run.cursor.before(opened) is not None:
        return _answer_unrecorded(run, command)
    reopened = False
    while True:
        opened = run.cursor.wait
        assert opened is not None
        outcome = _enter(run, command, opened)
        if outcome is not None:
            return outcome
        again = same_wait(command, run.cursor.wait_after)
        if opened.satisfied is False:
            run.reopened = None
            return _close(run, False)
        true = _evaluate(run, command)
        if isinstance(true, Fail):
            return true
        if true or (opened.satisfied and not again):
            run.reopened = command if again and reopened else None
            return _close(run, True)
        if not again:
            run.cursor.take_wait()
            behind = run.cursor.unconsumed
            if behind is not None:
                run.cursor.refuse(f"{command}, which is not true", str(behind), at=behind.sequence)
            run.author(operation(command, None), span=0)  # asked again: the server knows this wait (events.md §7)
            return WAIT
        reopened = True
        run.cursor.take_wait()


def skip_reopenings(run: Replaying) -> None:
    """Pass the openings of a wait that ended meanwhile, once the code is over."""
    command = run.reopened
    wait = run.cursor.wait
    while (
        command is not None
        and wait is not None
        and wait.satisfied is None
        and same_wait(command, wait)
        and not run.receivers.has_bound(wait.wait_id)
    ):
        run.cursor.take_wait()
        wait = run.cursor.wait


def _answer_unrecorded(run: Replaying, command: WaitCondition) -> Outcome:
    """Answer a wait that left no trace: its predicate was true at once, or history ends here."""
    if not _is_delivered_here(run, command):
        true = _evaluate(run, command)
        if isinstance(true, Fail):
            return true
        if true:
            run.reopened = None
            return Answer(True)
    outcome = at_call(run, command, "condition", (Placed(command, ()),))
    if outcome is not None:
        return outcome
    step = run.cursor.unconsumed
    if isinstance(step, WaitStep):
        run.cursor.refuse(*(wait_mismatch(command, step) or (str(command), str(step))), at=step.sequence)
    if step is not None:
        run.cursor.check(command, step)
    run.author(operation(command, None))
    return WAIT


def _is_delivered_here(run: Replaying, command: WaitCondition) -> bool:
    """Tell whether the recorded delivery may be that of this very wait, whatever its predicate has become since.

    A wait that was true when the run came by left no trace, so the call behind it has the same number.
    """
    delivery = pending_delivery(run)
    if delivery is None or delivery.sequence != run.cursor.position or delivery.call_kind != "condition":
        return False
    opened = run.history.by_sequence.get(delivery.sequence)
    return not isinstance(opened, WaitStep) or wait_mismatch(command, opened) is None


def _enter(run: Replaying, command: WaitCondition, opened: WaitStep) -> Outcome | None:
    problem = wait_mismatch(command, opened)
    if problem is not None:
        run.cursor.refuse(*problem, at=opened.sequence)
    outcome = at_call(
        run, command, "condition", (Placed(command, ()),), sequence=max(run.cursor.position, opened.sequence)
    )
    if outcome is not None:
        return outcome
    failure = run.receivers.of_wait(opened)
    if failure is not None:
        return Fail(failure)
    if opened.satisfied is not None:
        run.observe(opened.end_position)
    return None


def _close(run: Replaying, value: bool) -> Answer:
    run.cursor.take_wait()
    return Answer(value)


def _evaluate(run: Replaying, command: WaitCondition) -> bool | Fail:
    def predicate() -> bool:
        value = command.predicate()
        refuse_async(value, "the predicate of a wait")
        return bool(value)

    outcome = run.body.evaluate(predicate)
    if isinstance(outcome, Raised):
        return Fail(outcome.exception, prefix=_PREFIX, alone=True)
    assert isinstance(outcome, Returned)
    return bool(outcome.value)
