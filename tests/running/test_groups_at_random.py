"""Drawn troubles on drawn exchanges of a group: each member ends once, none is published after lost authority."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from running.scripted_children import hangs, raises, returns
from running.test_every_operation import FAULTS
from running.test_groups_with_server import OPTIONS, SPOILT, group_of
from running.whole_world import story

TROUBLES = st.lists(
    st.tuples(st.sampled_from((*SPOILT, "claim_heartbeat", "recover")), st.sampled_from(sorted(FAULTS))),
    min_size=1,
    max_size=6,
)
HANDLERS = {"returns": lambda: returns("done", after=2), "raises": lambda: raises("OSError"), "hangs": hangs}
BEHAVIOURS = st.lists(st.sampled_from(sorted(HANDLERS)), max_size=4)
ENDED = ("completed", "failed", "cancelled")


async def tell(troubles: list[tuple[str, str]], behaviours: list[str], slots: int, cancelled_at: float | None) -> None:
    options = {**OPTIONS, "start_to_close_timeout": 8}
    handlers = [*[HANDLERS[name]() for name in behaviours], *[returns("done", after=2) for _ in range(40)]]
    async with story(group_of(options, options, options, seed=True), *handlers, slots=slots) as told:
        for operation, fault in troubles:
            told.network.faults[operation].append(FAULTS[fault])

        async def cancel() -> None:
            if cancelled_at is not None:
                await trio.sleep(cancelled_at)
                path = "/workflows/wf/request-cancellation"
                await told.wire.control("POST", path, {"cleanup_timeout_seconds": 60})

        described = await told.run(within=900, meanwhile=cancel)
        assert described["status"] in ENDED
        await told.check()
        check_authority(told.network.seen)


def check_authority(seen: list[tuple[str, int, Any]]) -> None:
    """An attempt whose control was refused publishes nothing that is recorded anew."""
    lost: set[Any] = set()
    for operation, status, body in seen:
        attempt = body.get("activity_attempt_id")
        if operation == "control" and status == 409 and body.get("reason") != "local_activity_deadline_expired":
            lost.add(attempt)
        if operation == "outcome" and body.get("recorded") and not body.get("duplicate"):
            assert attempt not in lost, f"{attempt} was published after its authority was lost"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TROUBLES, BEHAVIOURS, st.integers(1, 3), st.none() | st.floats(0, 30))
def test_whatever_happens_to_a_group_each_member_ends_once(
    troubles: list[tuple[str, str]], behaviours: list[str], slots: int, cancelled_at: float | None
) -> None:
    trio.run(tell, troubles, behaviours, slots, cancelled_at, clock=MockClock(autojump_threshold=0))
