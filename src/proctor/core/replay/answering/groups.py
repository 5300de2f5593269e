"""Groups: all members side by side, answered together in authored order (events.md §6.3, commands.md §5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proctor.core.replay.answering.answers import WAIT, Answer, Fail, Outcome, Throw
from proctor.core.replay.answering.boundaries import at_call, must_not_pass
from proctor.core.replay.answering.local import call_of
from proctor.core.replay.answering.run import Replaying, recorded_value
from proctor.core.replay.authoring.commands import LocalActivity, WaitCondition
from proctor.core.replay.authoring.placing import Placed, leaves_of, place, shaped
from proctor.core.replay.authoring.wire_form import operation
from proctor.core.replay.decision import LocalCall, LocalGroup, Unworkable
from proctor.core.replay.failures import recorded_failure
from proctor.core.replay.recorded.steps import ActivityStep, Step

_MAX_PREPARED = 100  # members of one checkpoint-group (prepared-local.md §2.2)


def answer_group(run: Replaying, members: list[Any]) -> Outcome:
    """Answer a group from history; otherwise start all its members."""
    try:
        leaves = leaves_of(members)
    except (TypeError, ValueError) as exc:
        return Fail(exc)
    if any(isinstance(leaf, WaitCondition) for leaf in leaves):
        return Fail(TypeError("a group holds no conditions: wait for them one by one, or use ctx.select"))
    if not leaves:
        return Answer([])
    local = any(isinstance(leaf, LocalActivity) for leaf in leaves)
    prepared = local and run.task.prepared
    placed = place(members, run.cursor.position if prepared else run.cursor.group_base())
    outcome = at_call(run, f"group of {len(leaves)}", "parallel", placed)
    if outcome is not None:
        return outcome
    must_not_pass(run, f"group of {len(leaves)}")
    if prepared:
        group = _prepared(run, placed)
        if group is not None:
            return group
    answers = run.cursor.next_answers(len(placed))
    if answers is not None:
        return _answer(run, members, placed, answers)
    if local:
        return Unworkable(
            "local_group_not_prepared",
            "a group with local activities that are not recorded needs a prepared worker",
        )
    for leaf, step in zip(placed, run.cursor.next_unconsumed(len(placed)), strict=False):
        run.cursor.check(leaf.command, step, leaf.path)
    # All of them, even those that are scheduled: the server knows a member by its place (events.md §3).
    for leaf in placed:
        run.author(operation(leaf.command, run.task.queue, leaf.path))
    return WAIT


def _answer(run: Replaying, members: list[Any], placed: list[Placed], answers: Any) -> Outcome:
    for offset, (leaf, step) in enumerate(zip(placed, answers, strict=True)):
        run.cursor.check(leaf.command, step, leaf.path, at=run.cursor.position + offset)
    run.cursor.take_group(len(placed))
    failed = next((step for step in answers if recorded_failure(step) is not None), None)
    ends = [step.end_position for step in answers]
    if failed is not None:
        run.observe(*(end for end in ends if end <= failed.end_position))
        failure = recorded_failure(failed)
        assert failure is not None
        return Throw(failure)
    run.observe(*ends)
    return Answer(shaped(members, [recorded_value(step) for step in answers]))


def _prepared(run: Replaying, placed: list[Placed]) -> Outcome | None:
    """Have the group admitted, or its open local members run; None when every member has ended."""
    if len(placed) > _MAX_PREPARED:
        return Unworkable("local_group_too_large", f"a group with local activities has at most {_MAX_PREPARED} members")
    base = run.cursor.position
    steps = [run.history.by_sequence.get(base + offset) for offset in range(len(placed))]
    admitted = _is_admitted(run, placed, steps)
    if all(step is not None and step.end_type is not None for step in steps):
        return None
    prefix, prefix_start = tuple(run.authored.commands), run.prefix_start
    calls = []
    for offset, (leaf, step) in enumerate(zip(placed, steps, strict=True)):
        if isinstance(leaf.command, LocalActivity) and (step is None or step.end_type is None):
            recorded = step if isinstance(step, ActivityStep) else None
            call = call_of(run, leaf.command, recorded, sequence=base + offset, path=leaf.path, prefix=())
            if isinstance(call, Unworkable):
                return call
            calls.append(call)
    if not calls:
        return WAIT  # only members that other workers run are open
    admission = () if admitted else tuple(_admission(run, placed, calls, base))
    return LocalGroup(prefix, prefix_start, base, admission, tuple(calls))


def _is_admitted(run: Replaying, placed: list[Placed], steps: list[Step | None]) -> bool:
    present = [step for step in steps if step is not None]
    for leaf, step in zip(placed, steps, strict=True):
        if step is not None:
            run.cursor.check(leaf.command, step, leaf.path)
            if step.path != list(leaf.path):
                run.cursor.refuse(f"{leaf.command} as member of its group", f"{step} outside it", at=step.sequence)
    if present and len(present) != len(placed):
        run.cursor.refuse("a whole group", f"{len(present)} of its {len(placed)} members", at=run.cursor.position)
    return bool(present)


def _admission(run: Replaying, placed: list[Placed], calls: list[LocalCall], base: int) -> Iterator[dict[str, Any]]:
    descriptors = {call.sequence: call.descriptor for call in calls}
    for sequence, leaf in enumerate(placed, start=base):
        if isinstance(leaf.command, LocalActivity):
            yield descriptors[sequence] | {"type": "prepare_local_activity"}
        else:
            yield operation(leaf.command, run.task.queue, leaf.path)
