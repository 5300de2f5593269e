"""checkpoint: make the commands authored before a local call durable while keeping the claim (prepared-local.md §2.1).

It renews no lease and admits no handler. Only the latest receipt is kept, on the task. How a group is admitted in a
checkpoint is written in `group`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.batch import MARKERS, apply_commands, parse_commands
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.fields import Fields
from proctor.server.rules.local.claims import check_capability, check_claim, check_run_open
from proctor.server.rules.refusal import Answer, conflict
from proctor.server.rules.rows import CheckpointReceipt, Task
from proctor.server.rules.selections import selection_of
from proctor.server.rules.tasks import HISTORY_START_TOKEN

MAX_COMMANDS = 100
REFUSED = "invalid_local_activity_checkpoint_commands"

_ALLOWED = (*MARKERS, "schedule_activity", "start_timer", "start_child_workflow")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint asks for, and on whose behalf."""

    owner: str
    epoch: int
    checkpoint_id: str
    start_sequence: int
    items: Sequence[Mapping[str, Any]]

    @property
    def fingerprint(self) -> str:
        """Give what two identical checkpoints share."""
        return hashlib.sha256(msgspec.json.encode([self.start_sequence, self.items], order="sorted")).hexdigest()


def checkpoint(book: RunBook, task: Task, asked: Checkpoint) -> Answer:
    """Record the commands, repeat the receipt of the identical checkpoint, or raise the first refusal."""
    commands = _parse(asked.items, limit=book.settings.max_payload_bytes)

    def apply(task: Task) -> None:
        apply_commands(book, task, commands)

    return commit(book, task, asked, apply)


Apply = Callable[[Task], tuple[tuple[int, str], ...] | None]


def commit(
    book: RunBook, task: Task, asked: Checkpoint, apply: Apply, *, check: Callable[[Task], None] | None = None
) -> Answer:
    """Check the claim and the place in the run, let `apply` record, and give the receipt; once for each identity.

    `check` is what the claim must fulfil beside prepared local activities. `apply` gives the admitted members.
    """
    task = check_claim(book, task, asked.owner, asked.epoch)
    check_capability(task)
    if check is not None:
        check(task)
    check_run_open(book)
    last = task.checkpoint
    if last is not None and last.checkpoint_id == asked.checkpoint_id:
        if (last.fingerprint, last.lease_owner, last.epoch) != (asked.fingerprint, asked.owner, asked.epoch):
            raise conflict(
                "local_activity_checkpoint_mismatch",
                f"checkpoint {asked.checkpoint_id} is already recorded with other content or by another claim",
            )
        return _receipt(task, last, duplicate=True)
    cancellation = book.run.cancellation
    if cancellation is not None and cancellation.delivery is None:
        raise conflict("cancellation_requested", "the run has an accepted cancellation to be delivered first")
    if asked.start_sequence != book.run.next_sequence:
        raise conflict(
            "local_activity_checkpoint_sequence_mismatch",
            f"the next durable command is {book.run.next_sequence}, not {asked.start_sequence}",
            next_sequence=book.run.next_sequence,
        )
    admitted = apply(task)
    receipt = CheckpointReceipt(
        checkpoint_id=asked.checkpoint_id,
        fingerprint=asked.fingerprint,
        lease_owner=asked.owner,
        epoch=asked.epoch,
        start_sequence=asked.start_sequence,
        next_sequence=book.run.next_sequence,
        recorded_at=book.now,
        local_activities=admitted,
    )
    task = msgspec.structs.replace(task, checkpoint=receipt)
    book.put(task)
    return _receipt(task, receipt, duplicate=False)


def _parse(items: Sequence[Mapping[str, Any]], *, limit: int) -> list[Command]:
    forbidden = sorted({str(item.get("type")) for item in items} - set(_ALLOWED))
    if forbidden:
        raise conflict(REFUSED, f"a checkpoint cannot hold {', '.join(forbidden)}")
    fields = Fields({})
    commands = parse_commands(fields, items, Grammar(limit))
    fields.check()
    if any(selection_of(command.facts.get("group", {})) for command in commands if command.type not in MARKERS):
        raise conflict(REFUSED, "a checkpoint cannot hold members of a selection")
    return commands


def _receipt(task: Task, receipt: CheckpointReceipt, *, duplicate: bool) -> Answer:
    lease_ends = task.lease_expires_at
    body: dict[str, Any] = {
        "checkpointed": True,
        "duplicate": duplicate,
        "reason": None,
        "checkpoint_id": receipt.checkpoint_id,
        "task_id": task.task_id,
        "workflow_run_id": task.run_id,
        "workflow_task_attempt": receipt.epoch,
        "lease_owner": receipt.lease_owner,
        "lease_expires_at": None if lease_ends is None else format_instant(lease_ends),
        "start_sequence": receipt.start_sequence,
        "next_sequence": receipt.next_sequence,
        "fingerprint": receipt.fingerprint,
        "created_task_ids": [],
        "recorded_at": format_instant(receipt.recorded_at),
        "history_refresh_page_token": HISTORY_START_TOKEN,
    }
    if receipt.local_activities is not None:
        body["local_activities"] = [
            {"sequence": sequence, "activity_execution_id": execution_id}
            for sequence, execution_id in receipt.local_activities
        ]
    return Answer(body)
