"""Large payloads over real sockets: transfers that are lost, cut, refused or wrong, and claims that end meanwhile.

Whatever happens to a transfer, no task, activity or run fails for it, and what was not stored is not published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from faults.rig import Rig, rig
from proctor.core.external import reference_to
from proctor.harness import Cut, Delay, DropRequest, DropResponse, Duplicate, Fault, Hold, Refuse, Rewrite

SIZE = 3_000
TRANSFERS = ("upload_payload", "fetch_payload")
FAULTS: tuple[Fault, ...] = (
    DropRequest(),
    DropResponse(),
    Duplicate(),
    Cut("request"),
    Cut("answer"),
    Delay(0.05, "request"),
    Delay(0.05, "answer"),
    Refuse("backend_unavailable"),
    Refuse("storage_pressure"),
)
FEWER = (DropRequest(), DropResponse(), Cut("answer"))
PROFILES = [("local", "supervised"), ("local", "ordinary"), ("queued", "supervised")]
FAILED = ("ActivityFailed", "ActivityTimedOut", "WorkflowFailed")


def storing(**options: Any) -> Any:
    return rig(**{"workflow_task_lease_seconds": 2.0, "external_threshold_bytes": 500, **options})


async def spoil(here: Rig, kind: str, rules: list[Any], what: object) -> None:
    try:
        with trio.fail_after(25):
            await here.spoilt_runs(kind, rules, size=SIZE)
    except BaseException as exc:
        exc.add_note(f"with {what}; the last exchanges:")
        for exchange in here.proxy.exchanges[-30:]:
            exc.add_note(str(exchange))
        raise


@pytest.mark.parametrize(("kind", "profile"), PROFILES)
async def test_a_spoilt_transfer_is_made_again(kind: str, profile: str) -> None:
    async with storing() as here:
        await here.start_worker(profile=profile, queued_activities=1)
        for fault in FAULTS if (kind, profile) == PROFILES[0] else FEWER:
            await spoil(here, kind, [here.proxy.add(fault, operation) for operation in TRANSFERS], fault)
        assert all(seen.status in (None, 200, 201) for seen in here.proxy.exchanges if seen.operation in TRANSFERS)


@pytest.mark.parametrize(("kind", "profile"), PROFILES[:2])
async def test_a_transfer_that_stays_lost_for_a_while_costs_at_most_another_claim(kind: str, profile: str) -> None:
    async with storing() as here:
        await here.start_worker(profile=profile, queued_activities=1)
        for operation in TRANSFERS:
            await spoil(here, kind, [here.proxy.add(DropRequest(), operation, times=4)], operation)
        for run in range(1, 3):
            history = await here.client.history(f"run-{run}")
            assert not [event for event in history if event["event_type"] in FAILED]


def other_bytes(content: bytes) -> bytes:
    return content[::-1]


def fewer_bytes(content: bytes) -> bytes:
    return content[:-4]


def more_bytes(content: bytes) -> bytes:
    return content + b"AAAA"


@pytest.mark.parametrize("change", [other_bytes, fewer_bytes, more_bytes])
async def test_wrong_bytes_are_never_replayed_and_once_right_the_run_goes_on(change: Callable[[bytes], bytes]) -> None:
    async with storing() as here:
        await here.start_worker()
        wrong = here.proxy.add(Rewrite(change), "fetch_payload", times=None)
        handle = await here.start("local", "work", "v" * SIZE)
        ended = await here.event("workflow_task")
        assert (ended["outcome"], ended["reason"]) == ("failed", "ExternalPayloadError")
        assert (await handle.describe())["status"] == "waiting"
        here.proxy.remove(wrong)

        assert await handle.result() == "v" * SIZE
        assert len(wrong.exchanges) >= 3
        await here.check(handle)


async def test_an_attempt_whose_arguments_come_wrong_is_given_up_and_not_failed() -> None:
    async with storing() as here:
        await here.start_worker("decides")
        await here.start_worker("works", workflows=[], queued_activities=1)
        wrong = here.proxy.add(Rewrite(other_bytes), "fetch_payload", worker="works", times=None)
        handle = await here.start("queued", "work", "v" * SIZE)
        ended = await here.event("attempt_ended")
        assert (ended["outcome"], ended["reason"]) == ("abandoned", "external_payload_integrity_mismatch")
        here.proxy.remove(wrong)
        await here.server.expire_lease(worker_id="works")

        assert await handle.result() == "v" * SIZE
        assert "ActivityFailed" not in [event["event_type"] for event in await here.check(handle)]


def about_other_bytes(body: Any) -> Any:
    reference = reference_to(body["reference"]["reference_id"], b"other")
    return {**body, "reference": {**body["reference"], "sha256": reference.sha256}}


async def test_a_receipt_about_other_bytes_is_not_referred_to() -> None:
    async with storing() as here:
        await here.start_worker()
        lied = here.proxy.add(Rewrite(about_other_bytes), "upload_payload")
        handle = await here.start("local", "work", "v" * SIZE)

        assert await handle.result() == "v" * SIZE
        assert lied.used_up
        await here.check(handle)


@pytest.mark.parametrize("kind", ["local", "queued"])
async def test_a_result_that_could_not_be_stored_is_published_in_no_other_way(kind: str) -> None:
    async with storing() as here:
        await here.start_worker("first", queued_activities=1)
        lied = here.proxy.add(Rewrite(about_other_bytes), "upload_payload", nth=2)  # the first are the arguments
        handle = await here.start(kind, "repeat", "v" * SIZE)
        ended = await here.event("attempt_ended")
        assert lied.used_up
        assert (ended["outcome"], ended["reason"], ended["published"]) == ("abandoned", "protocol_breach", False)
        await here.server.expire_lease(worker_id="first")

        assert await handle.result() == "v" * SIZE * 2
        await here.check(handle)


def published_after(here: Rig, moment: float, worker: str) -> list[str]:
    """Give what a worker sent after a moment that could be the end of an attempt or of a turn."""
    ends = ("outcome", "complete_workflow_task", "fail_workflow_task", "complete_activity_task", "fail_activity_task")
    return [
        str(seen)
        for seen in here.proxy.exchanges
        if seen.operation in ends and seen.worker == worker and seen.began > moment
    ]


@pytest.mark.parametrize(("kind", "profile"), PROFILES)
async def test_a_claim_that_ends_while_its_result_is_stored_publishes_nothing(kind: str, profile: str) -> None:
    async with storing(workflow_task_lease_seconds=30.0) as here:
        first = await here.start_worker("first", profile=profile, queued_activities=1, drain_grace=30.0)
        # An ordinary worker stores what a call took and gave with its completion, others store a result by itself.
        nth = 1 if profile == "ordinary" else 2
        held = here.proxy.add(Hold("request"), "upload_payload", nth=nth)
        handle = await here.start(kind, "repeat", "v" * SIZE)
        await held.acted()
        moment = trio.current_time()
        first.drain()  # what it holds goes on, and it takes nothing new
        await here.server.expire_lease(worker_id="first")
        expired = trio.current_time()
        await here.start_worker("second", profile=profile, queued_activities=1)

        assert await handle.result() == "v" * SIZE * 2
        # Only who was told that the claim is gone must not speak for it any more. A status says so in a whole answer.
        await here.proxy.wait_for(
            lambda seen: (
                seen.worker == "first"
                and (
                    (seen.began > moment and seen.given == 409)
                    or (seen.began > expired and seen.given == 200 and seen.operation == "activity_task_status")
                )
            )
        )
        held.release()
        await here.event("deregistered")
        history = await here.check(handle)
        assert published_after(here, moment, "first") == []
        assert [event["event_type"] for event in history].count("ActivityCompleted") == 1


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_a_claim_that_ends_while_its_history_is_fetched_does_nothing_more(profile: str) -> None:
    async with storing(workflow_task_lease_seconds=30.0) as here:
        first = await here.start_worker("first", profile=profile, drain_grace=30.0)
        held = here.proxy.add(Hold("request"), "fetch_payload")
        handle = await here.start("local", "work", "v" * SIZE)
        await held.acted()
        moment = trio.current_time()
        first.drain()
        await here.server.expire_lease(worker_id="first")
        await here.start_worker("second", profile=profile)

        assert await handle.result() == "v" * SIZE
        held.release()
        await here.event("deregistered")
        await here.check(handle)
        assert published_after(here, moment, "first") == []
        assert all(event["outcome"] == "completed" for event in here.told if event["event"] == "attempt_ended")


async def test_a_lease_is_renewed_while_a_large_result_is_stored() -> None:
    """The transfer takes longer than two leases, and no other attempt is made."""
    async with storing(workflow_task_lease_seconds=1.0) as here:
        await here.start_worker()
        slow = here.proxy.add(Delay(2.5, "request"), "upload_payload", nth=2)
        handle = await here.start("local", "repeat", "v" * SIZE)

        assert await handle.result() == "v" * SIZE * 2
        assert slow.used_up
        kinds = [event["event_type"] for event in await here.check(handle)]
        assert kinds.count("ActivityStarted") == 1
