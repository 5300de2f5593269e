"""Groups with local members, as workers author, admit and attempt them (prepared-local.md §2.2)."""

from __future__ import annotations

from typing import Any

from server.groups import TIMER, level, member
from server.wire import (
    ENVELOPE,
    Attempt,
    Claim,
    Wire,
    Worker,
    describe_call,
)

QUEUED = {"type": "schedule_activity", "activity_type": "charge", "arguments": ENVELOPE}
CHILD = {"type": "start_child_workflow", "workflow_type": "other", "arguments": ENVELOPE}


def local(**changes: Any) -> dict[str, Any]:
    return {**describe_call(), "type": "prepare_local_activity", **changes}


def descriptor(admitted: dict[str, Any]) -> dict[str, Any]:
    """Give what prepare takes for a member that was admitted so."""
    return {**admitted, "type": "record_local_activity"}


def nested(base: int = 1, **changes: Any) -> list[dict[str, Any]]:
    """Give `[local, [timer, local], queued, child]`."""
    outer = [level("mixed", base, 5, index) for index in range(5)]
    inner = [level("mixed", base + 1, 2, index) for index in range(2)]
    return [
        member(local(**changes), outer[0]),
        member(TIMER, outer[1], inner[0]),
        member(local(**changes), outer[2], inner[1]),
        member(QUEUED, outer[3]),
        member(CHILD, outer[4]),
    ]


async def admitted(wire: Wire, worker: Worker, group: list[dict[str, Any]]) -> Claim:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint_group("g", 1, *group)).ok()
    return claim


async def prepared(claim: Claim, group: list[dict[str, Any]], sequence: int, nonce: str = "") -> Attempt:
    base = group[0]["parallel_group_path"][0]["parallel_group_base_sequence"]
    taken = descriptor(group[sequence - base])
    return await claim.prepared(nonce or f"n{sequence}", sequence=sequence, **taken)
