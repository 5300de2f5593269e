"""Members of an admitted group run side by side on one claim; one end of each in history, whatever happens to one.

The real service, the real replay and the real rules of the server on a mocked clock; only children are scripted.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.attempt import StopCause
from proctor.core.codec import decode, envelope
from proctor.errors import StopUnconfirmed
from running.scripted_children import Behaviour, hangs, raises, returns
from running.test_every_operation import FAULTS
from running.whole_world import Broken, Story, malformed, story

RETRY = {"max_attempts": 6, "backoff_seconds": [0, 0, 0, 0, 0], "non_retryable_error_types": []}
Event = dict[str, Any]


def group_of(*options: dict[str, Any], seed: bool = False) -> type[Any]:
    """Make a workflow that awaits one local activity for each of the options, as a list."""

    @workflow.defn(name="group")
    class Group:
        async def run(self, ctx: Any) -> Any:
            if seed:
                await ctx.side_effect(lambda: "seed")
            members = [ctx.local_activity("act", [number], **one) for number, one in enumerate(options)]
            return await ctx.gather(members)

    return Group


@workflow.defn(name="nested")
class Nested:
    async def run(self, ctx: Any) -> Any:
        seed = await ctx.side_effect(lambda: "seed")
        first = ctx.local_activity("act", [seed, 1], start_to_close_timeout=30)
        second = ctx.local_activity("act", [seed, 2], start_to_close_timeout=30)
        third = ctx.local_activity("act", [seed, 3], start_to_close_timeout=30)
        return await ctx.gather([first, [ctx.start_timer(3), second], third])


def of(history: list[Event], sequence: int) -> list[str]:
    """Give the event types of one member, without those of its run."""
    return [event["event_type"] for event in history if event["payload"].get("sequence") == sequence]


def place_of(history: list[Event], kind: str, sequence: int) -> int:
    found = [event["event_type"] == kind and event["payload"].get("sequence") == sequence for event in history]
    return found.index(True)


async def result_of(told: Story) -> Any:
    return decode((await told.wire.events())[-1]["payload"]["output"]["blob"])


async def test_members_run_at_the_same_time_and_their_results_come_in_authored_order(
    autojump_clock: MockClock,
) -> None:
    behaviours = [returns("one", after=20), returns("two", after=10), returns("three", after=15)]
    async with story(Nested, *behaviours, slots=3) as told:
        begun = trio.current_time()
        described = await told.run()
        history = await told.check()

        assert described["status"] == "completed"
        assert await result_of(told) == ["one", [None, "two"], "three"]
        assert trio.current_time() - begun < 25
    kinds = [event["event_type"] for event in history]
    assert kinds[2:7] == [
        "SideEffectRecorded",
        "ActivityScheduled",
        "TimerScheduled",
        "ActivityScheduled",
        "ActivityScheduled",
    ]
    started = [event["payload"]["sequence"] for event in history if event["event_type"] == "ActivityStarted"]
    ended = [event["payload"]["sequence"] for event in history if event["event_type"] == "ActivityCompleted"]
    assert (started, ended) == ([2, 4, 5], [4, 5, 2])
    assert len({event["workflow_task_id"] for event in history if event["event_type"] == "ActivityStarted"}) == 1


async def test_a_member_is_prepared_when_there_is_a_place_for_its_child(autojump_clock: MockClock) -> None:
    options = {"start_to_close_timeout": 8}
    async with story(group_of(options, options, options), *[returns("x", after=6)] * 3, slots=1) as told:
        described = await told.run()
        await told.check()

    assert described["status"] == "completed", "the time of a member that waits for a child does not run"


async def test_a_claim_that_waits_for_a_place_is_kept(autojump_clock: MockClock) -> None:
    async with story(group_of({}, {}), *[returns("x", after=35)] * 4, slots=2) as told:
        await told.wire.start("other", "group", arguments={"codec": "avro", "blob": "wwHioz3/VYAiNwwA"})
        described = await told.run()
        await told.check()
        other = await told.wire.describe("other")

        assert (described["status"], other["status"]) == ("completed", "completed")
        assert [name for name, _, _ in told.network.seen].count("checkpoint_group") == 2
        assert len(told.children.jobs) == 4


async def test_a_failed_member_fails_the_group_when_all_have_ended(autojump_clock: MockClock) -> None:
    async with story(group_of({}, {}), raises("OSError"), returns("two", after=12), slots=2) as told:
        described = await told.run()
        history = await told.check()

    assert described["status"] == "failed"
    assert of(history, 1)[-1] == "ActivityFailed"
    assert of(history, 2)[-1] == "ActivityCompleted"
    assert history[-1]["payload"]["exception_type"] == "OSError"


async def test_a_retry_waits_until_the_other_members_have_ended(autojump_clock: MockClock) -> None:
    behaviours = [raises("OSError"), returns("two", after=30), returns("one", after=1)]
    async with story(group_of({"retry_policy": RETRY}, {}), *behaviours, slots=2) as told:
        described = await told.run()
        history = await told.check()

        assert described["status"] == "completed"
        assert await result_of(told) == ["one", "two"]
    assert of(history, 2) == ["ActivityScheduled", "ActivityStarted", "ActivityCompleted"]
    retried = place_of(history, "ActivityRetryScheduled", 1)
    assert retried > place_of(history, "ActivityCompleted", 2)
    assert history[retried]["payload"]["retry_reason"] == "failure"
    assert history[retried]["payload"]["exception_type"] == "OSError"


async def test_a_failure_is_reported_before_it_would_count_as_a_timeout(autojump_clock: MockClock) -> None:
    options = {"retry_policy": RETRY, "start_to_close_timeout": 5}
    behaviours = [raises("OSError"), hangs(), *[returns("done", after=1)] * 4]
    async with story(group_of(options, {"retry_policy": RETRY}), *behaviours, slots=2) as told:
        described = await told.run()
        history = await told.check()
        ends = told.children.ends

    assert described["status"] == "completed"
    assert ends[1].cause == StopCause.AUTHORITY_LOST  # type: ignore[union-attr]
    reasons = {
        event["payload"]["sequence"]: event["payload"]["retry_reason"]
        for event in history
        if event["event_type"] == "ActivityRetryScheduled"
    }
    assert reasons == {1: "failure", 2: "cold_replay"}
    outcome = next(event for event in told.events if event.get("attempt") == 1 and event.get("stop"))
    assert (outcome["published"], outcome["reason"]) == (False, "claim_released")


async def test_two_members_that_are_both_retried_come_to_their_ends(autojump_clock: MockClock) -> None:
    options = {"retry_policy": RETRY}
    behaviours = [raises("OSError"), raises("OSError"), *[returns("done", after=1)] * 4]
    async with story(group_of(options, options, {}), *behaviours[:2], returns("third", after=4), *behaviours[2:],
                     slots=3) as told:  # fmt: skip
        described = await told.run()
        history = await told.check()

        assert described["status"] == "completed"
        assert await result_of(told) == ["done", "done", "third"]
    retries = [event["payload"] for event in history if event["event_type"] == "ActivityRetryScheduled"]
    assert sorted(payload["retry_reason"] for payload in retries) == ["cold_replay", "failure"]


async def test_without_authority_all_members_are_stopped_and_nothing_is_published(autojump_clock: MockClock) -> None:
    options = {"retry_policy": RETRY}
    behaviours: list[Behaviour] = [hangs(), hangs(), *[returns("done", after=1)] * 8]
    async with story(group_of(options, options), *behaviours, slots=2) as told:
        cut = False

        async def unreachable(honest: Any) -> Any:
            if cut:
                raise Broken
            return await honest()

        async def cut_off() -> None:
            nonlocal cut
            await told.children.wait_until(lambda: len(told.children.jobs) == 2)
            cut = True
            await trio.sleep(25)
            cut = False

        for operation in ("control", "outcome", "claim_heartbeat", "poll", "prepare", "recover", "history"):
            told.network.faults[operation] = Endless(unreachable)
        described = await told.run(meanwhile=cut_off)
        history = await told.check()
        ends = told.children.ends

    assert described["status"] == "completed"
    assert [end.cause for end in ends[:2]] == [StopCause.AUTHORITY_LOST] * 2  # type: ignore[union-attr]
    outcomes = [event["payload"]["activity_attempt_id"] for event in history if event["payload"].get("local_outcome")]
    assert not set(outcomes) & {job.attempt_id for job in told.children.jobs[:2]}


class Endless(list[Any]):
    """Faults of an operation that never run out."""

    def __init__(self, fault: Any) -> None:
        super().__init__([fault])

    def pop(self, index: Any = -1) -> Any:
        return self[0]


@pytest.mark.parametrize("policy", ["try_cancel", "wait_cancellation_completed"])
async def test_a_cancellation_stops_every_member_and_is_delivered_once_at_the_group(
    autojump_clock: MockClock, policy: str
) -> None:
    options = {"cancellation_policy": policy}
    async with story(group_of(options, options, options), hangs(), hangs(), returns("early"), slots=3) as told:

        async def cancel() -> None:
            await told.children.wait_until(lambda: len(told.children.ends) == 1)
            await trio.sleep(2)
            await told.wire.cancel_cooperatively(cleanup_timeout_seconds=60)

        described = await told.run(meanwhile=cancel)
        history = await told.check()

    assert described["status"] == "cancelled"
    kinds = [event["event_type"] for event in history]
    assert kinds.count("ActivityCancellationAcknowledged") == 2
    assert kinds.count("CooperativeCancellationDelivered") == 1
    delivered = next(event["payload"] for event in history if event["event_type"] == "CooperativeCancellationDelivered")
    assert (delivered["call_kind"], delivered["sequence"], delivered["sequence_span"]) == ("parallel", 1, 3)
    assert kinds.index("CooperativeCancellationDelivered") > kinds.index("ActivityCancellationAcknowledged")
    assert len(told.children.jobs) == 3


async def test_a_request_that_comes_while_members_wait_for_a_place_starts_no_more(autojump_clock: MockClock) -> None:
    async with story(group_of({}, {}, {}), hangs(), slots=1) as told:

        async def cancel() -> None:
            await told.children.started.wait()
            await told.wire.cancel_cooperatively(cleanup_timeout_seconds=60)

        described = await told.run(meanwhile=cancel)
        history = await told.check()

    assert described["status"] == "cancelled"
    assert len(told.children.jobs) == 1
    assert of(history, 2) == ["ActivityScheduled", "ActivityCancelled"]


async def test_a_request_before_the_admission_is_delivered_at_the_group(autojump_clock: MockClock) -> None:
    async with story(group_of({}, {}, seed=True), slots=2) as told:

        async def request_first(honest: Any) -> Any:
            await told.wire.cancel_cooperatively(cleanup_timeout_seconds=60)
            return await honest()

        told.network.faults["checkpoint_group"].append(request_first)
        begun = trio.current_time()
        described = await told.run()
        history = await told.check()

        assert described["status"] == "cancelled"
        assert trio.current_time() - begun < 5, "no lease had to run out"
    assert "ActivityScheduled" not in [event["event_type"] for event in history]
    assert told.children.jobs == []


@workflow.defn(name="cleans-up")
class CleansUp:
    async def run(self, ctx: Any) -> Any:
        try:
            await ctx.gather([ctx.local_activity("act", []), ctx.start_timer(600)])
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                await ctx.gather([ctx.local_activity("act", ["undo", 1]), ctx.local_activity("act", ["undo", 2])])
            raise


async def test_cleanup_may_be_a_group_and_its_proof_is_in_the_admission(autojump_clock: MockClock) -> None:
    async with story(CleansUp, hangs(), returns("undone"), returns("undone"), slots=2) as told:

        async def cancel() -> None:
            await told.children.started.wait()
            await told.wire.cancel_cooperatively(cleanup_timeout_seconds=60)

        described = await told.run(meanwhile=cancel)
        history = await told.check()

    assert described["status"] == "cancelled"
    admitted = [event["payload"] for event in history if "local_group_admission" in event["payload"]]
    proofs = [payload["local_group_admission"].get("cancellation_cleanup") for payload in admitted]
    assert proofs[0] is None
    assert proofs[1] is not None
    assert proofs[1] == proofs[2]
    assert len(told.children.jobs) == 3


async def test_a_member_that_is_not_proven_gone_keeps_its_place_and_the_claim_ends(autojump_clock: MockClock) -> None:
    async with story(group_of({"start_to_close_timeout": 3}, {}), hangs(), hangs(), slots=2, provable=False) as told:
        with pytest.RaisesGroup(StopUnconfirmed, allow_unwrapped=True, flatten_subgroups=True):
            await told.run(within=30)
        history = await told.wire.events()

    assert not any(event["payload"].get("local_outcome") for event in history)
    assert told.children.running == 0
    assert [event["event"] for event in told.events].count("deregistered") == 0


async def test_a_worker_all_of_whose_places_are_lost_takes_no_claim_that_would_wait_for_one_for_ever(
    autojump_clock: MockClock,
) -> None:
    options = {"start_to_close_timeout": 3}
    async with story(group_of(options, options), hangs(), hangs(), slots=2, provable=False) as told:
        await told.wire.start("first", "group", arguments=envelope([]))

        async def start_another() -> None:
            await told.children.wait_until(lambda: len(told.children.ends) == 2)
            await told.wire.start("second", "group", arguments=envelope([]))

        with trio.fail_after(60), pytest.RaisesGroup(StopUnconfirmed, allow_unwrapped=True, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(told.service.run)
                nursery.start_soon(start_another)
        assert "ActivityScheduled" not in [event["event_type"] for event in await told.wire.events("second")]


async def test_a_draining_worker_ends_what_runs_and_begins_no_other_member(autojump_clock: MockClock) -> None:
    async with story(group_of({}, {}), returns("one", after=5), slots=1) as told:
        await told.wire.start("wf", "group", arguments={"codec": "avro", "blob": "wwHioz3/VYAiNwwA"})
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(told.service.run)
                await told.children.started.wait()
                told.service.drain()
        history = await told.wire.events()

    assert of(history, 1)[-1] == "ActivityCompleted"
    assert of(history, 2) == ["ActivityScheduled"]


SPOILT = ("checkpoint", "checkpoint_group", "prepare", "control", "outcome", "history", "complete")
OPTIONS: dict[str, Any] = {"start_to_close_timeout": 30, "retry_policy": RETRY}


def spoilt() -> list[Behaviour]:
    return [raises("OSError", after=0.5), *[returns("done", after=2)] * 24]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", SPOILT)
async def test_one_spoilt_exchange_costs_at_most_other_attempts(
    autojump_clock: MockClock, operation: str, fault: str
) -> None:
    async with story(group_of(OPTIONS, OPTIONS, OPTIONS, seed=True), *spoilt(), slots=2) as told:
        told.network.faults[operation].append(FAULTS[fault])
        described = await told.run()
        history = await told.check()

        assert described["status"] == "completed"
        assert await result_of(told) == ["done"] * 3
        assert told.network.faults[operation] == []
    assert [event["event_type"] for event in history].count("ActivityScheduled") == 3, "admitted once"


async def test_a_receipt_of_a_group_that_is_malformed_in_any_one_field_does_no_harm(autojump_clock: MockClock) -> None:
    async with story(group_of(OPTIONS, OPTIONS, seed=True), *spoilt(), slots=2) as told:
        await told.run()
        receipt = next(body for name, _, body in told.network.seen if name == "checkpoint_group")
    assert len(receipt) > 10

    for field in receipt:
        async with story(group_of(OPTIONS, OPTIONS, seed=True), *spoilt(), slots=2) as told:
            told.network.faults["checkpoint_group"].append(malformed([(field,)], {"malformed": [True]}))
            described = await told.run()
            history = await told.check()
        assert described["status"] == "completed", field
        assert [event["event_type"] for event in history].count("ActivityScheduled") == 2


async def test_a_claim_given_up_before_a_child_ran_passes_its_place_to_no_other_member(
    autojump_clock: MockClock,
) -> None:
    options = {"retry_policy": RETRY}
    async with story(group_of(options, options), *[returns("done", after=1)] * 6, slots=1) as told:
        told.network.faults["control"].append(malformed([("renewed",)], "yes"))
        await told.run()
        await told.check()
        prepared = [body for name, _, body in told.network.seen if name == "prepare" and body.get("prepared")]

    claims = [(body["workflow_task_id"], body["workflow_task_attempt"]) for body in prepared]
    assert claims[0] not in claims[1:], "an attempt was prepared on a claim that had been given up"
