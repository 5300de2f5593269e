"""checkpoint: make the commands authored before a local call durable while keeping the claim (prepared-local.md §2.1).

It renews no lease and admits no handler. Only the latest receipt is kept, on the task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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
from proctor.server.rules.tasks import HISTORY_START_TOKEN

MAX_COMMANDS = 100


def checkpoint(
    book: RunBook,
    task: Task,
    *,
    owner: str,
    epoch: int,
    checkpoint_id: str,
    start_sequence: int,
    items: Sequence[Mapping[str, Any]],
) -> Answer:
    """Record the commands, repeat the receipt of the identical checkpoint, or raise the first refusal."""
    commands = _parse(items, limit=book.settings.max_payload_bytes)
    task = check_claim(book, task, owner, epoch)
    check_capability(task)
    check_run_open(book)
    fingerprint = hashlib.sha256(msgspec.json.encode([start_sequence, items], order="sorted")).hexdigest()
    last = task.checkpoint
    if last is not None and last.checkpoint_id == checkpoint_id:
        if (last.fingerprint, last.lease_owner, last.epoch) != (fingerprint, owner, epoch):
            raise conflict(
                "local_activity_checkpoint_mismatch",
                f"checkpoint {checkpoint_id} is already recorded with other content or by another claim",
            )
        return _receipt(task, last, duplicate=True)
    cancellation = book.run.cancellation
    if cancellation is not None and cancellation.delivery is None:
        raise conflict("cancellation_requested", "the run has an accepted cancellation to be delivered first")
    if start_sequence != book.run.next_sequence:
        raise conflict(
            "local_activity_checkpoint_sequence_mismatch",
            f"the next durable command is {book.run.next_sequence}, not {start_sequence}",
            next_sequence=book.run.next_sequence,
        )
    apply_commands(book, task, commands)
    receipt = CheckpointReceipt(
        checkpoint_id=checkpoint_id,
        fingerprint=fingerprint,
        lease_owner=owner,
        epoch=epoch,
        start_sequence=start_sequence,
        next_sequence=book.run.next_sequence,
        recorded_at=book.now,
    )
    task = msgspec.structs.replace(task, checkpoint=receipt)
    book.put(task)
    return _receipt(task, receipt, duplicate=False)


def _parse(items: Sequence[Mapping[str, Any]], *, limit: int) -> list[Command]:
    forbidden = sorted({str(item.get("type")) for item in items} - set(MARKERS))
    if forbidden:
        raise conflict(
            "invalid_local_activity_checkpoint_commands",
            f"a checkpoint cannot hold {', '.join(forbidden)}",
        )
    fields = Fields({})
    commands = parse_commands(fields, items, Grammar(limit))
    fields.check()
    return commands


def _receipt(task: Task, receipt: CheckpointReceipt, *, duplicate: bool) -> Answer:
    lease_ends = task.lease_expires_at
    return Answer(
        {
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
    )
