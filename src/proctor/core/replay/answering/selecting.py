"""Answering selections: which member history says has won, and what became of the others (replay.md §6).

Members are found by their durable number, not by order, because they end whenever they end. Without a recorded
``SelectionResolved`` a selection has no winner, even if every member has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from proctor.core.replay.answering.answers import WAIT, Answer, Fail, Outcome, Throw
from proctor.core.replay.answering.boundaries import at_call, must_not_pass
from proctor.core.replay.answering.run import Replaying, recorded_value
from proctor.core.replay.authoring.commands import LocalActivity
from proctor.core.replay.authoring.placing import MAX_MEMBERS, Placed, group_kind, kind_of, leaves_of, place, shaped
from proctor.core.replay.authoring.selection import (
    CancelOperation,
    DurableOperationHandle,
    Selection,
    SelectionResult,
    identity_fields,
)
from proctor.core.replay.authoring.wire_form import operation
from proctor.core.replay.decision import Unworkable
from proctor.core.replay.failures import DurableOperationCancelled, recorded_failure
from proctor.core.replay.recorded.steps import Step, WaitStep, shown

_FAILED = frozenset(
    {
        "ActivityFailed",
        "ActivityCancelled",
        "ActivityTimedOut",
        "ChildRunFailed",
        "ChildRunCancelled",
        "ChildRunTerminated",
    }
)


@dataclass(frozen=True, slots=True)
class _Member:
    """One authored member with its leaves in place."""

    key: int | str
    operation: Any
    kind: str
    base: int
    leaves: tuple[Placed, ...]


def answer_select(run: Replaying, command: Selection) -> Outcome:
    """Answer a selection by its recorded resolution; otherwise start its members, or wait for them."""
    try:
        leaves = [leaf for _, member in command.operations for leaf in _leaves(member)]
    except (TypeError, ValueError) as exc:
        return Fail(exc)
    if len(leaves) > MAX_MEMBERS:
        return Fail(ValueError(f"a selection has at most {MAX_MEMBERS} operations"))
    if any(isinstance(leaf, LocalActivity) for leaf in leaves):
        return Unworkable("local_selection", "a local activity cannot be a member of a selection")
    unplaced = tuple(Placed(leaf, ()) for leaf in leaves)
    outcome = at_call(run, command, "parallel", unplaced)
    if outcome is not None:
        return outcome
    must_not_pass(run, command)
    resolutions = run.history.resolutions
    marker = resolutions[run.selections] if run.selections < len(resolutions) else None
    base = _base(run, None if marker is None else marker[1])
    members, group_id = _place(command, base, len(leaves), group_kind(leaves))
    if marker is not None and marker[1].get("selection_group_id") != group_id:
        run.cursor.refuse(f"{command} as {group_id}", f"a selection {marker[1].get('selection_group_id')!r}", at=base)
    recorded = _check_members(run, members, required=marker is not None)
    handles = _handles(run, members, group_id, known=marker is not None)
    run.selected.update(range(base, base + len(leaves)))
    if marker is None:
        if recorded:
            return WAIT
        for member in members:
            for leaf in member.leaves:
                run.author(operation(leaf.command, run.task.queue, leaf.path))
        return WAIT
    run.selections += 1
    run.cursor.position = max(run.cursor.position, base + len(leaves))
    return _resolve(run, handles, members, *marker)


def answer_handle(run: Replaying, handle: DurableOperationHandle) -> Outcome:
    """Answer the await of a member by its recorded end."""
    if run.handles.get(id(handle)) is not handle:
        return Fail(ValueError("the handle is of another replay: handles come from the result of ctx.select"))
    outcome = at_call(run, handle, "selection_handle", (), operation=(handle.base_sequence, handle.size))
    if outcome is not None:
        return outcome
    cancelled = run.history.cancelled_members.get((handle.selection_group_id, handle.base_sequence))
    if cancelled is not None:
        _check_cancelled(run, handle, cancelled[1])
        run.observe(cancelled[0])
        return Throw(
            DurableOperationCancelled(handle.selection_group_id, handle.key, handle.index, handle.kind, handle.identity)
        )
    steps = _ended(run, handle)
    failed = _first_failure(steps)
    if failed is not None:
        run.observe(*(step.end_position for step in steps if step.end_position <= failed.end_position))
        failure = recorded_failure(failed)
        assert failure is not None
        return Throw(failure)
    if len(steps) < handle.size:
        must_not_pass(run, handle)
        return WAIT
    run.observe(*(step.end_position for step in steps))
    raised = _deliver_receivers(run, steps)
    return Answer(_value(handle, steps)) if raised is None else Fail(raised)


def answer_cancel(run: Replaying, command: CancelOperation) -> Outcome:
    """Ask the server to cancel a member, unless history shows that it did."""
    handle = command.handle
    if run.handles.get(id(handle)) is not handle:
        return Fail(ValueError("the handle is of another replay: handles come from the result of ctx.select"))
    must_not_pass(run, command, span=0)
    recorded = run.history.cancelled_members.get((handle.selection_group_id, handle.base_sequence))
    if recorded is not None:
        _check_cancelled(run, handle, recorded[1])
        return Answer(None)
    if run.uncommitted:
        run.take_uncommitted(command, "cancel_selection_operation")
        return Answer(None)
    run.author(command.to_wire(), span=0)
    steps = _ended(run, handle)
    ended = len(steps) == handle.size or _first_failure(steps) is not None
    if run.is_query and not ended and run.cursor.unconsumed is None:
        return WAIT  # a query shows what is durable: the code behind this place has not run for certain
    return Answer(None)


def require_none_left(run: Replaying, asked: str) -> None:
    """Require, at the end of the code, that every recorded selection was asked for."""
    history = run.history
    left = sorted(number for number in history.selected if number not in run.selected)
    if left:
        run.cursor.refuse(asked, str(history.selected[left[0]]), at=left[0])
    if run.selections < len(history.resolutions):
        marker = history.resolutions[run.selections][1]
        run.cursor.refuse(asked, f"a resolved selection {marker.get('selection_group_id')!r}")
    for group, base in history.cancelled_members:
        if (group, base) not in run.cancelled_members:
            run.cursor.refuse(asked, f"a cancelled member of selection {group!r}", at=base)


def _leaves(member: Any) -> list[Any]:
    if isinstance(member, list):
        return leaves_of(member)
    kind_of(member)
    return [member]


def _base(run: Replaying, marker: Mapping[str, Any] | None) -> int:
    if marker is not None:
        base = marker.get("selection_group_base_sequence")
        if not isinstance(base, int) or isinstance(base, bool) or base < 1:
            run.cursor.refuse("a selection", f"a selection at sequence {shown(base)}")
        return base
    if run.cursor.strict:
        return run.cursor.position
    step = run.cursor.unconsumed
    if step is not None:
        return step.sequence
    return min((number for number in run.history.selected if number not in run.selected), default=run.cursor.position)


def _place(command: Selection, base: int, size: int, kind: str) -> tuple[list[_Member], str]:
    group_id = f"select-calls:{base}:{size}"
    members: list[_Member] = []
    index = 0
    for position, (key, member) in enumerate(command.operations):
        is_group = isinstance(member, list)
        inner = place(member, base + index) if is_group else [Placed(member, ())]
        member_kind = "group" if is_group else kind_of(member)
        leaves = []
        for offset, leaf in enumerate(inner):
            entry = {
                "parallel_group_id": group_id,
                "parallel_group_kind": kind,
                "parallel_group_mode": "select",
                "parallel_group_base_sequence": base,
                "parallel_group_size": size,
                "parallel_group_index": index + offset,
                "selection_member_key": key,
                "selection_member_index": position,
                "selection_member_base_sequence": base + index,
                "selection_member_size": len(inner),
                "selection_member_kind": member_kind,
            }
            leaves.append(Placed(leaf.command, (entry, *leaf.path)))
        members.append(_Member(key, member, member_kind, base + index, tuple(leaves)))
        index += len(inner)
    return members, group_id


def _check_members(run: Replaying, members: Sequence[_Member], *, required: bool) -> bool:
    """Require that what history has of the members is what the code asks for; tell whether it has anything."""
    recorded = False
    for member in members:
        for offset, leaf in enumerate(member.leaves):
            sequence = member.base + offset
            step = run.history.selected.get(sequence)
            if step is None:
                if required:
                    run.cursor.refuse(str(leaf.command), "a resolved selection without this member", at=sequence)
                continue
            recorded = True
            run.cursor.check(leaf.command, step, leaf.path)
            if step.identity is None or step.identity_disputed:
                run.cursor.refuse(
                    f"{leaf.command} under one durable identity", f"{step} with none, or with two", at=sequence
                )
    return recorded


def _handles(
    run: Replaying, members: Sequence[_Member], group_id: str, *, known: bool
) -> dict[int | str, DurableOperationHandle]:
    handles: dict[int | str, DurableOperationHandle] = {}
    for index, member in enumerate(members):
        step = run.history.selected.get(member.base)
        if member.kind == "group":
            identity = f"group:{member.base}:{len(member.leaves)}"
        else:
            identity = step.identity if known and step is not None and step.identity else f"{member.kind}:{member.base}"
        handle = DurableOperationHandle(
            member.key, index, member.kind, identity, member.base, len(member.leaves), group_id, member.operation
        )
        handles[member.key] = handle
        run.handles[id(handle)] = handle
        cancelled = run.history.cancelled_members.get((group_id, member.base))
        if cancelled is not None:
            _check_cancelled(run, handle, cancelled[1])
            run.cancelled_members.add((group_id, member.base))
    return handles


def _resolve(
    run: Replaying,
    handles: Mapping[int | str, DurableOperationHandle],
    members: Sequence[_Member],
    position: int,
    marker: Mapping[str, Any],
) -> Outcome:
    key = marker.get("member_key")
    winner = handles.get(key) if isinstance(key, (int, str)) and not isinstance(key, bool) else None
    if winner is None:
        _refuse_marker(run, "one of its members", f"the winner {shown(key)}")
    base = members[0].base
    size = sum(len(member.leaves) for member in members)
    expected = identity_fields(winner) | {
        "selection_group_base_sequence": base,
        "selection_group_size": size,
    }
    for name, value in expected.items():
        if marker.get(name) != value:
            _refuse_marker(run, f"{winner} with {name} {value!r}", f"{name} {shown(marker.get(name))}", winner)
    resolving = _resolving_step(run, winner, marker)
    steps = _ended(run, winner)
    failure = None
    if marker.get("outcome") == "failed":
        failure = recorded_failure(resolving)
    elif _first_failure(steps) is not None or len(steps) < winner.size:
        _refuse_marker(run, f"{winner} completed", "a winner that failed or has not ended", winner)
    run.observe(position)
    raised = _deliver_receivers(
        run, [step for number in _numbers(winner) if (step := run.history.selected.get(number)) is not None]
    )
    if raised is not None:
        return Fail(raised)
    return Answer(
        SelectionResult(
            key=winner.key,
            index=winner.index,
            kind=winner.kind,
            identity=winner.identity,
            value=None if failure is not None else _value(winner, steps),
            failure=failure,
            winner=winner,
            handles=handles,
        )
    )


def _resolving_step(run: Replaying, winner: DurableOperationHandle, marker: Mapping[str, Any]) -> Step:
    """Give the step whose end decided: the first failure, or the last success (replay.md §6)."""
    outcome = marker.get("outcome")
    if outcome not in ("completed", "failed"):
        _refuse_marker(run, "an outcome completed or failed", f"outcome {shown(outcome)}", winner)
    steps = [step for step in _ended(run, winner) if (step.end_type in _FAILED) == (outcome == "failed")]
    step = None if not steps else (steps[0] if outcome == "failed" else steps[-1])
    if (
        step is None
        or step.end_id is None
        or (step.end_id, step.end_type) != (marker.get("resolution_event_id"), marker.get("resolution_event_type"))
    ):
        _refuse_marker(run, f"{winner} ended by the event that ended it", "a reference to another event", winner)
    return step


def _ended(run: Replaying, handle: DurableOperationHandle) -> list[Step]:
    """Give the operations of a member that have ended, in the order of their ends."""
    steps = [run.history.selected.get(number) for number in _numbers(handle)]
    return sorted(
        (step for step in steps if step is not None and step.end_position >= 0), key=lambda step: step.end_position
    )


def _numbers(handle: DurableOperationHandle) -> range:
    return range(handle.base_sequence, handle.base_sequence + handle.size)


def _first_failure(steps: Sequence[Step]) -> Step | None:
    return next((step for step in steps if step.end_type in _FAILED), None)


def _value(handle: DurableOperationHandle, steps: Sequence[Step]) -> Any:
    values = [recorded_value(step) for step in sorted(steps, key=lambda step: step.sequence)]
    return shaped(handle.operation, values) if isinstance(handle.operation, list) else values[0]


def _deliver_receivers(run: Replaying, steps: Sequence[Step]) -> BaseException | None:
    for step in sorted(steps, key=lambda step: step.sequence):
        if isinstance(step, WaitStep):
            failure = run.receivers.of_wait(step)
            if failure is not None:
                return failure
    return None


def _check_cancelled(run: Replaying, handle: DurableOperationHandle, payload: Mapping[str, Any]) -> None:
    for name, value in identity_fields(handle).items():
        if payload.get(name) != value:
            run.cursor.refuse(
                f"{handle} with {name} {value!r}",
                f"a cancelled member with {name} {shown(payload.get(name))}",
                at=handle.base_sequence,
            )


def _refuse_marker(run: Replaying, expected: str, found: str, winner: DurableOperationHandle | None = None) -> NoReturn:
    run.cursor.refuse(
        f"a selection won by {expected}",
        f"a SelectionResolved with {found}",
        at=None if winner is None else winner.base_sequence,
    )
