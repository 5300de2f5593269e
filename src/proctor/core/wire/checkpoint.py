"""The checkpoint of commands authored before a local call (prepared-local.md §2.1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from proctor.core.wire.fields import Fields
from proctor.core.wire.prepare import ClaimIdentity

_SECTION = "prepared-local §2.1"


def checkpoint_id(claim: ClaimIdentity, *, start: int, commands: Sequence[Mapping[str, Any]]) -> str:
    """Give the idempotency identity of a checkpoint: the same commands on the same claim give the same id."""
    return _digest([claim.task_id, claim.lease_owner, claim.epoch, start, list(commands)])


def attempt_nonce(claim: ClaimIdentity, *, sequence: int) -> str:
    """Give the nonce of the one attempt that this claim may start at `sequence` (prepared-local.md §2.3)."""
    return _digest([claim.task_id, claim.run_id, claim.lease_owner, claim.epoch, sequence])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_checkpoint(
    body: object, *, claim: ClaimIdentity, identity: str, start: int, commands: Sequence[Mapping[str, Any]]
) -> str:
    """Validate a checkpoint receipt and give the token from which the whole history is read again.

    Raises ProtocolBreach with the number of the rule in prepared-local.md §2.1.
    """
    fields = Fields(body, what="checkpoint", section=_SECTION)
    fields.exactly("checkpointed", True, "1")
    fields.boolean("duplicate", "1")
    fields.exactly("reason", None, "1")
    fields.exactly("checkpoint_id", identity, "2")
    fields.exactly("task_id", claim.task_id, "2")
    fields.exactly("workflow_run_id", claim.run_id, "2")
    fields.exactly("lease_owner", claim.lease_owner, "2")
    fields.exactly("workflow_task_attempt", claim.epoch, "3")
    fields.exactly("start_sequence", start, "3")
    fields.exactly("next_sequence", start + len(commands), "3")
    return fields.text("history_refresh_page_token", "4")
