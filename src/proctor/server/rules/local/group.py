"""checkpoint-group: admit a list of calls with local members as a whole, or nothing of it (prepared-local.md §2.2).

Each member gets its opening event and its durable number; a local one has no attempt yet. Lists may be nested; the
batch is exactly one list, and no selection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proctor.server.rules import limits, waits
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands import relatives
from proctor.server.rules.commands.batch import apply_command, parse_command
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.commands.groups import LOCAL_MEMBER, check_groups, group_of, read_group
from proctor.server.rules.fields import Fields
from proctor.server.rules.local.checkpoint import REFUSED, Checkpoint, commit
from proctor.server.rules.local.claims import check_group_capability, cleanup_authority, cleanup_body
from proctor.server.rules.local.descriptor import Descriptor, check_policy, descriptor_from
from proctor.server.rules.local.schedule import schedule
from proctor.server.rules.refusal import Answer, Refusal, conflict
from proctor.server.rules.rows import Cleanup, Execution, Task

_KINDS = (LOCAL_MEMBER, "schedule_activity", "start_timer", "start_child_workflow")


def checkpoint_group(book: RunBook, task: Task, asked: Checkpoint) -> Answer:
    """Admit the group, repeat the receipt of the identical checkpoint, or raise the first refusal."""
    capabilities = () if task.claim is None else task.claim.capabilities
    for item in asked.items:
        if item.get("type") == LOCAL_MEMBER:
            check_policy(item, capabilities, book.settings.policies)
    commands = _parse(asked.items, limit=book.settings.max_payload_bytes)
    _check_is_one_list(commands, asked.start_sequence)

    def apply(task: Task) -> tuple[tuple[int, str], ...]:
        return _admit(book, task, asked, commands)

    return commit(book, task, asked, apply, check=check_group_capability)


def _parse(items: Sequence[Mapping[str, Any]], *, limit: int) -> list[Command]:
    forbidden = sorted({str(item.get("type")) for item in items} - set(_KINDS))
    if forbidden:
        raise conflict(REFUSED, f"a group cannot hold {', '.join(forbidden)}")
    if not any(item["type"] == LOCAL_MEMBER for item in items):
        raise conflict(REFUSED, "a group without local activities is completed, not admitted")
    fields = Fields({})
    commands = [_read(Fields(item, f"commands.{index}.", fields.errors), limit) for index, item in enumerate(items)]
    fields.check()
    return [command for command in commands if command is not None]


def _read(reader: Fields, limit: int) -> Command | None:
    if reader.body["type"] != LOCAL_MEMBER:
        return parse_command(reader, Grammar(limit))
    descriptor = descriptor_from(reader.body, prefix=reader.prefix, limit=limit, refuse_as=REFUSED)
    return Command(LOCAL_MEMBER, {"descriptor": descriptor, "group": read_group(reader)})


def _check_is_one_list(commands: Sequence[Command], start: int) -> None:
    """Refuse a batch that is not exactly one list whose first member has the number `start`."""
    for command in commands:
        outermost = next(iter(group_of(command).get("parallel_group_path", ())), None)
        if outermost is None or "parallel_group_mode" in outermost:
            raise conflict(REFUSED, f"a {command.type} is not a member of a list")
        if (outermost["parallel_group_base_sequence"], outermost["parallel_group_size"]) != (start, len(commands)):
            raise conflict(REFUSED, f"the batch is not the whole of {outermost['parallel_group_id']}")
    try:
        check_groups(commands, start)
    except Refusal as refusal:
        raise conflict(REFUSED, refusal.text) from refusal


def _admit(book: RunBook, task: Task, asked: Checkpoint, commands: Sequence[Command]) -> tuple[tuple[int, str], ...]:
    relatives.check_policies(task, commands)
    limits.check_turn(book, commands)
    proofs = {
        number: cleanup_authority(book, command.facts["descriptor"].cleanup, number)
        for number, command in enumerate(commands, start=asked.start_sequence)
        if command.type == LOCAL_MEMBER
    }
    waits.passed(book, task)
    admitted: list[tuple[int, str]] = []
    for command in commands:
        if command.type == LOCAL_MEMBER:
            execution = _schedule(book, task, asked, command.facts, proofs[book.run.next_sequence])
            admitted.append((execution.sequence, execution.execution_id))
        else:
            apply_command(book, task, command)
    return tuple(admitted)


def _schedule(
    book: RunBook, task: Task, asked: Checkpoint, facts: Mapping[str, Any], cleanup: Cleanup | None
) -> Execution:
    descriptor: Descriptor = facts["descriptor"]
    admission: dict[str, Any] = {
        "version": 1,
        "descriptor_fingerprint": descriptor.fingerprint,
        "checkpoint_id": asked.checkpoint_id,
        "batch_fingerprint": asked.fingerprint,
        "workflow_task_attempt": asked.epoch,
    }
    if cleanup is not None:
        admission["cancellation_cleanup"] = cleanup_body(cleanup)
    return schedule(book, task, descriptor, cleanup, group=facts["group"], admission=admission)
