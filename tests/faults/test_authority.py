"""Lost authority, late answers and acknowledgements over real sockets: who may say what, and when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from faults.rig import STOPS, is_alive, pid_from, pids_from, pipe_in, rig
from news import await_events
from proctor.errors import WorkflowFailed
from proctor.harness import Cut, DropResponse, Duplicate, Fault, Hold
from proctor_supervisor import SupervisorOptions

LEASE = 1.5
UPDATE_EVENTS = ("UpdateAccepted", "UpdateApplied", "UpdateCompleted")


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_a_partitioned_worker_stops_its_child_in_time_publishes_nothing_and_another_finishes(
    profile: str, tmp_path: Path
) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        await here.start_worker("first", profile=profile)
        handle = await here.start("local", "block_at_first", str(pipe))
        pid = await pid_from(pipe)
        child = os.pidfd_open(pid)

        with here.proxy.partition("first"):
            cut_off_at = trio.current_time()
            await trio.lowlevel.wait_readable(child)
            assert trio.current_time() - cut_off_at < LEASE + 0.5
            os.close(child)
            second = await here.start_worker("second", profile=profile)
            if profile == "ordinary":
                # What an ordinary worker ran is known to nobody else: its successor begins with attempt 1 again.
                await pid_from(pipe)
                await here.client.cancel(handle.workflow_id)
            else:
                assert await handle.result() == 2

        history = await here.check(handle)
        published = [
            seen
            for seen in here.proxy.exchanges
            if seen.worker == "first" and seen.sent and seen.began > cut_off_at and seen.fault is None
            and seen.operation in ("outcome", "complete_workflow_task", "acknowledge_cancellation")
        ]  # fmt: skip
        assert published == [], [str(seen) for seen in published]
        assert [event["event_type"] for event in history].count("ActivityCompleted") == (profile == "supervised")
        assert not is_alive(pid)
        second.drain()


async def test_a_partitioned_worker_stops_every_member_of_a_list_and_another_worker_finishes_it(
    tmp_path: Path,
) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        both = SupervisorOptions(children=2, stop=STOPS, preload=["faults.work"])
        await here.start_worker("first", supervisor=both)
        handle = await here.start("group", "block_at_first", str(pipe))
        pids = await pids_from(pipe, 2)
        children = [os.pidfd_open(pid) for pid in pids]

        with here.proxy.partition("first"):
            cut_off_at = trio.current_time()
            for child in children:
                await trio.lowlevel.wait_readable(child)
                os.close(child)
            assert trio.current_time() - cut_off_at < LEASE + 0.5
            second = await here.start_worker("second", supervisor=both)
            assert await handle.result() == 2

        history = await here.check(handle)
        published = {
            event["payload"]["activity_attempt_id"] for event in history if event["payload"].get("local_outcome")
        }
        kinds = [event["event_type"] for event in history]
        assert len(set(pids)) == 2
        assert len(published) == kinds.count("ActivityCompleted") == 2
        assert kinds.count("ActivityScheduled") == 2
        assert not any(is_alive(pid) for pid in pids)
        second.drain()


async def test_an_outcome_that_arrives_after_its_lease_was_ended_is_fenced_and_the_next_attempt_counts(
    tmp_path: Path,
) -> None:
    async with rig(workflow_task_lease_seconds=30.0) as here:
        await here.start_worker("first")
        held = here.proxy.add(Hold("request"), "outcome", worker="first")
        handle = await here.start("local", "work", "value")
        late = await held.acted()
        await here.start_worker("second")
        await here.server.expire_lease(worker_id="first")
        assert await handle.result() == "value"
        held.release()
        await here.proxy.wait_for(lambda seen: seen is late and seen.ended is not None)

        assert late.status in (None, 409), str(late)
        history = await here.check(handle)
        assert [event["event_type"] for event in history].count("ActivityStarted") == 2


async def test_an_update_that_waits_for_a_local_call_is_answered_by_the_worker_that_takes_the_run_over(
    tmp_path: Path,
) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        both = SupervisorOptions(children=2, stop=STOPS, preload=["faults.work"])
        await here.start_worker("first", supervisor=both)
        handle = await here.start("asked", "block_at_first", str(pipe))
        pid = await pid_from(pipe)
        child = os.pidfd_open(pid)
        told = await here.client.update(handle.workflow_id, "put", ["value"], request_id="mine", wait_for="accepted")
        assert told["update_status"] == "accepted"

        with here.proxy.partition("first"):
            cut_off_at = trio.current_time()
            await trio.lowlevel.wait_readable(child)
            assert trio.current_time() - cut_off_at < LEASE + 0.5
            os.close(child)
            await here.start_worker("second")
            told = await here.client.update(handle.workflow_id, "put", ["value"], request_id="mine")
            assert (told["update_status"], told["result"]) == ("completed", 1)

        await handle.signal("finish")
        assert await handle.result() == ["value"]
        kinds = [event["event_type"] for event in await here.check(handle)]
        assert [kinds.count(kind) for kind in UPDATE_EVENTS] == [1, 1, 1]
        assert kinds.index("ActivityCompleted") < kinds.index("UpdateApplied")
        assert kinds.count("ActivityStarted") == 2
        published = [
            str(seen) for seen in here.proxy.exchanges
            if seen.worker == "first" and seen.sent and seen.began > cut_off_at and seen.fault is None
            and seen.operation in ("outcome", "complete_workflow_task", "approve_update")
        ]  # fmt: skip
        assert published == []
        assert not is_alive(pid)


async def test_an_update_that_two_workers_answer_is_applied_once() -> None:
    async with rig(workflow_task_lease_seconds=30.0) as here:
        await here.start_worker("first")
        handle = await here.start("asked", "", [])
        await await_events(here.client, handle.workflow_id, "ConditionWaitOpened")
        held = here.proxy.add(Hold("request"), "complete_workflow_task", worker="first")
        await here.client.update(handle.workflow_id, "put", ["value"], request_id="mine", wait_for="accepted")
        late = await held.acted()
        await here.start_worker("second")
        await here.server.expire_lease(worker_id="first")
        told = await here.client.update(handle.workflow_id, "put", ["value"], request_id="mine")
        held.release()
        await here.proxy.wait_for(lambda seen: seen is late and seen.ended is not None)
        await handle.signal("finish")

        assert (told["update_status"], told["result"]) == ("completed", 1)
        assert late.status in (None, 409), str(late)
        assert await handle.result() == ["value"]
        kinds = [event["event_type"] for event in await here.check(handle)]
        assert [kinds.count(kind) for kind in UPDATE_EVENTS] == [1, 1, 1]


async def test_a_completion_that_was_committed_but_never_answered_is_not_made_twice() -> None:
    async with rig(workflow_task_lease_seconds=30.0) as here:
        await here.start_worker()
        lost = here.proxy.add(DropResponse(), "complete_workflow_task", times=3)
        handle = await here.start("local", "work", "value")

        assert await handle.result() == "value"
        await here.proxy.wait_for(lambda seen: len(lost.exchanges) == 3 and lost.exchanges[-1].ended is not None)
        assert [seen.status for seen in lost.exchanges] == [200, 409, 409]
        await here.check(handle)


@pytest.mark.parametrize("kind", ["local", "queued"])
@pytest.mark.parametrize("fault", [Hold("request"), DropResponse(), Duplicate(), Cut("answer")], ids=str)
async def test_a_stop_is_acknowledged_once_and_only_when_the_process_is_gone(
    kind: str, fault: Fault, tmp_path: Path
) -> None:
    operation = "acknowledge_cancellation" if kind == "local" else "acknowledge_activity_cancellation"
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=6.0) as here:
        await here.start_worker(queued_activities=1)
        rules = [here.proxy.add(fault, operation), here.proxy.add(DropResponse(), "deliver_cancellation")]
        handle = await here.start(kind, "block", str(pipe))
        pid = await pid_from(pipe)
        await here.client.request_cancellation(handle.workflow_id, cleanup_timeout_seconds=60)
        await rules[0].acted()
        if isinstance(fault, Hold):
            assert not is_alive(pid), "acknowledged before the proof"
            rules[0].release()
        with pytest.raises(WorkflowFailed) as ended:
            await handle.result()

        assert ended.value.status == "cancelled"
        assert [rule.used_up for rule in rules] == [True, True]
        kinds = [event["event_type"] for event in await here.check(handle)]
        assert kinds.count("ActivityCancellationAcknowledged") == 1
        assert kinds.count("CooperativeCancellationDelivered") == 1
        assert not is_alive(pid)
