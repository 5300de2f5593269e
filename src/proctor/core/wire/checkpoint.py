"""Checkpoints: the commands authored before a local call, and whole groups (prepared-local.md §2.1, §2.2)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.core.wire.fields import Fields, shown
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


LOCAL_MEMBER = "prepare_local_activity"
"""The command type of a local member of a group."""

_GROUP_SECTION = "prepared-local §2.2"
_OPENINGS = {
    LOCAL_MEMBER: ("ActivityScheduled",),
    "schedule_activity": ("ActivityScheduled",),
    "start_timer": ("TimerScheduled",),
    "start_child_workflow": ("ChildWorkflowScheduled", "ChildRunStarted"),
}


@dataclass(frozen=True, slots=True)
class AdmittedGroup:
    """A validated group receipt: the token to reload history from, and the execution of each local member."""

    refresh_token: str
    executions: Mapping[int, str]


def read_group_checkpoint(
    body: object, *, claim: ClaimIdentity, identity: str, start: int, commands: Sequence[Mapping[str, Any]]
) -> AdmittedGroup:
    """Validate a checkpoint-group receipt; `commands` is the whole group, its first member at sequence `start`."""
    token = read_checkpoint(body, claim=claim, identity=identity, start=start, commands=commands)
    fields = Fields(body, what="checkpoint-group", section=_GROUP_SECTION)
    stated = fields.present("local_activities", "members")
    expected = [start + index for index, command in enumerate(commands) if command.get("type") == LOCAL_MEMBER]
    if not isinstance(stated, list) or len(stated) != len(expected):
        fields.breach("members", f"has local_activities {shown(stated)} for {len(expected)} local members")
    executions: dict[int, str] = {}
    for sequence, entry in zip(expected, stated, strict=True):
        member = Fields(entry, what="checkpoint-group (local_activities)", section=_GROUP_SECTION)
        member.exactly("sequence", sequence, "members")
        executions[sequence] = member.text("activity_execution_id", "members")
    if len(set(executions.values())) != len(executions):
        fields.breach("members", "gives two members one execution")
    return AdmittedGroup(token, executions)


def check_group_events(
    history: Sequence[Mapping[str, Any]],
    group: AdmittedGroup,
    *,
    start: int,
    commands: Sequence[Mapping[str, Any]],
) -> None:
    """Require in refreshed history the opening of every member, with its place in the group (§2.2)."""
    fields = Fields({}, what="history", section=_GROUP_SECTION)
    for sequence, command in enumerate(commands, start=start):
        kinds = _OPENINGS.get(str(command.get("type")), ())
        payloads = [
            event["payload"]
            for event in history
            if (event.get("event_type") or event.get("type")) in kinds and isinstance(event.get("payload"), Mapping)
        ]
        opened = [one for one in payloads if one.get("sequence", one.get("workflow_sequence")) == sequence]
        if not opened:
            fields.breach("history", f"shows no opening of the member at sequence {sequence}")
        if opened[0].get("parallel_group_path") != command.get("parallel_group_path"):
            fields.breach("history", f"opens the member at sequence {sequence} in another place")
        if sequence in group.executions and opened[0].get("activity_execution_id") != group.executions[sequence]:
            fields.breach("history", f"opens the member at sequence {sequence} as another execution")
