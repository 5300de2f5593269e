"""Real processes over real sockets: each operation that a worker uses, with each thing that can happen to an exchange.

On a mocked clock, with delays past every lease: running/test_every_operation.py; field by field: test_every_field.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from faults.rig import STOPS, Rig, is_alive, pids_from, pipe_in, rig
from proctor.errors import ServerRefused, WorkflowFailed
from proctor.harness import (
    OPERATIONS,
    Cut,
    Delay,
    DropRequest,
    DropResponse,
    Duplicate,
    Exchange,
    Fault,
    Hold,
    Refuse,
    Rewrite,
    Rule,
)
from proctor_supervisor import SupervisorOptions

LEASE = 1.5


def unreadable(body: Any) -> Any:
    return {name: {"malformed": [True]} for name in body}


FAULTS: tuple[Fault, ...] = (
    DropRequest(),
    DropResponse(),
    Duplicate(),
    Cut("request"),
    Cut("answer"),
    Delay(0.05, "request"),
    Delay(0.05, "answer"),
)
LATE: tuple[Fault, ...] = (Delay(LEASE + 0.5, "request"), Delay(LEASE + 0.5, "answer"))
ALL: tuple[Fault, ...] = (*FAULTS, *LATE, Rewrite(unreadable))

LOCAL = ("poll_workflow_task", "workflow_task_history", "checkpoint", "prepare", "control", "heartbeat", "outcome",
         "complete_workflow_task")  # fmt: skip
GROUP = ("checkpoint", "checkpoint_group", "prepare", "control", "outcome", "complete_workflow_task")
ORDINARY = ("poll_workflow_task", "heartbeat_workflow_task", "complete_workflow_task")
ATTEMPT = ("renew_activity_lease", "activity_task_status", "heartbeat_activity_task", "complete_activity_task",
           "fail_activity_task")  # fmt: skip
QUEUED = ("poll_activity_task", *ATTEMPT, "complete_workflow_task")
CANCELLED = ("acknowledge_cancellation", "deliver_cancellation")
ASKED = ("poll_query_task", "query_task_status", "complete_query_task", "fail_query_task", "approve_update",
         "reject_update")  # fmt: skip
SESSION = ("create_session", "heartbeat_session", "close_session")  # sent by the official SDK's workers only
LIFE = ("cluster_info", "register_worker", "heartbeat_worker", "deregister_worker")

HERE = {*LOCAL, *GROUP, *ORDINARY, *QUEUED, *CANCELLED, *ASKED, *SESSION, *LIFE, "recover", "fail_workflow_task"}
ELSEWHERE = {
    "acknowledge_activity_cancellation",  # test_authority.py
    "upload_payload",  # test_external_payloads.py
    "fetch_payload",
}
NEVER_SENT = {
    "deregister_worker_unfenced",  # only to servers that have no fence, which ours has
    "start_workflow",  # a client's
}


def test_every_operation_that_has_a_name_is_spoilt_unless_no_worker_sends_it() -> None:
    assert set(OPERATIONS) == HERE | ELSEWHERE | NEVER_SENT
    assert not HERE & NEVER_SENT


def only_what_is_spoilt_was_sent(exchanges: tuple[Exchange, ...]) -> None:
    assert {seen.operation for seen in exchanges} <= HERE | ELSEWHERE


# -- one after the other: a run per fault, in which all its operations are spoilt --------------------------------------


async def spoil(here: Rig, kind: str, operations: tuple[str, ...], *faults: Fault, name: str = "work") -> None:
    """Do each fault to all the operations of a run, until each has been spoilt by it."""
    for fault in faults:
        rules = [here.proxy.add(fault, operation) for operation in operations]
        try:
            with trio.fail_after(20):
                await here.spoilt_runs(kind, rules, name=name)
        except BaseException as exc:
            exc.add_note(f"with {fault}; the last exchanges:")
            for exchange in here.proxy.exchanges[-30:]:
                exc.add_note(str(exchange))
            raise
    only_what_is_spoilt_was_sent(here.proxy.exchanges)


async def test_prepared_local_activities() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker()
        await spoil(here, "local", LOCAL, *FAULTS)


async def test_lists_of_prepared_local_activities() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker(supervisor=children(2))
        await spoil(here, "group", GROUP, *FAULTS)


async def test_the_ordinary_profile() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker(profile="ordinary")
        await spoil(here, "local", ORDINARY, *FAULTS)


async def test_queued_activities() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker(queued_activities=1)
        await spoil(here, "queued", QUEUED, *FAULTS, name="stumble")


async def test_an_operation_that_is_refused_for_now_is_made_again() -> None:
    refusals = (Refuse("backend_unavailable"), Refuse("storage_pressure"))
    async with rig(workflow_task_lease_seconds=6.0) as here:
        await here.start_worker()
        await spoil(here, "local", ("prepare", "outcome"), *refusals)
        assert all(event["outcome"] == "completed" for event in here.told if event["event"] == "attempt_ended")


async def test_an_answer_that_says_nothing_readable_costs_at_most_another_attempt() -> None:
    async with rig(workflow_task_lease_seconds=1.0) as here:
        await here.start_worker()
        for operation in ("checkpoint", "prepare", "control", "outcome"):
            await spoil(here, "local", (operation,), Rewrite(unreadable))


async def test_queries_and_updates() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker()
        handle = await here.start("asked", "", [])
        values: list[str] = []
        for fault in FAULTS:
            rules = [here.proxy.add(fault, operation) for operation in ASKED]
            with trio.fail_after(20):
                while not all(rule.used_up for rule in rules):
                    values.append(f"value {len(values)}")
                    assert await handle.update("put", values[-1]) == len(values)
                    assert await handle.query("values") == values
                    with pytest.raises(ServerRefused) as unanswered:
                        await handle.query("broken")
                    with pytest.raises(ServerRefused) as rejected:
                        await handle.update("put", "")
            assert (unanswered.value.reason, rejected.value.reason) == ("query_rejected", "update_validator_rejected")
        await handle.signal("finish")
        assert await handle.result() == values
        kinds = [event["event_type"] for event in await here.check(handle)]
        counts = [kinds.count(f"Update{what}") for what in ("Accepted", "Applied", "Completed")]
        assert counts == [len(values)] * 3
        only_what_is_spoilt_was_sent(here.proxy.exchanges)


# -- side by side: many runs at once, of which each fault meets one ----------------------------------------------------


def children(count: int = len(ALL)) -> SupervisorOptions:
    return SupervisorOptions(children=count, stop=STOPS, preload=["faults.work"])


def spoil_one_each(here: Rig, *operations: str, faults: tuple[Fault, ...] = ALL) -> list[Rule]:
    """Do each fault to one exchange of each operation."""
    return [
        here.proxy.add(fault, operation, nth=number)
        for operation in operations
        for number, fault in enumerate(faults, start=1)
    ]


def all_met(here: Rig, rules: list[Rule]) -> None:
    missed = [f"{rule.fault} of {rule.match.operation}" for rule in rules if not rule.used_up]
    assert not missed, missed
    only_what_is_spoilt_was_sent(here.proxy.exchanges)


async def test_sessions_of_the_official_sdk() -> None:
    async with rig() as here:
        rules = spoil_one_each(here, *SESSION, faults=FAULTS)
        program = [sys.executable, str(Path(__file__).with_name("official_sessions.py")), here.proxy.url]
        done = await trio.run_process([*program, str(len(FAULTS))], capture_stdout=True)

        outcomes = json.loads(done.stdout)
        assert len(outcomes) == len(FAULTS)
        for created, renewed, closed in outcomes:
            assert created in ("created", "reused")
            assert (renewed, closed in ("closed", "already_closed")) == ("heartbeat_recorded", True)
        all_met(here, rules)


async def test_an_interrupted_attempt_is_recovered_once(tmp_path: Path) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        await here.start_worker(supervisor=children())
        handles = [await here.start("local", "block_at_first", str(pipe)) for _ in ALL]
        pids = await pids_from(pipe, len(ALL))
        rules = spoil_one_each(here, "recover")
        await here.server.expire_lease(worker_id="w")
        for handle in handles:
            completed = await handle.result()
            history = await here.check(handle)
            closed = [event["payload"] for event in history if event["payload"].get("local_recovery")]
            # A slow machine may lose the second attempt as well; each one that was lost is closed once.
            assert len({payload["activity_attempt_id"] for payload in closed}) == len(closed) == completed - 1 >= 1

        all_met(here, rules)
        assert not any(is_alive(pid) for pid in pids)


async def test_a_task_that_failed_is_told_of_and_done_again() -> None:
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        await here.start_worker(supervisor=children(3))
        rules = spoil_one_each(here, "fail_workflow_task")
        handles = [await here.start("fragile", "work", number) for number in range(len(ALL))]
        for number, handle in enumerate(handles):
            assert await handle.result() == number
            await here.check(handle)

        all_met(here, rules)


async def test_a_cancelled_call_ends_its_run_once(tmp_path: Path) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        await here.start_worker(supervisor=children())
        handles = [await here.start("local", "block", str(pipe)) for _ in ALL]
        pids = await pids_from(pipe, len(ALL))
        rules = spoil_one_each(here, *CANCELLED)
        for handle in handles:
            await here.client.request_cancellation(handle.workflow_id, cleanup_timeout_seconds=60)
        for handle in handles:
            with pytest.raises(WorkflowFailed) as ended:
                await handle.result()
            assert ended.value.status == "cancelled"
            kinds = [event["event_type"] for event in await here.check(handle)]
            assert kinds.count("ActivityCancellationAcknowledged") <= 1
            assert kinds.count("CooperativeCancellationDelivered") == 1

        all_met(here, rules)
        assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize(
    ("kind", "profile", "operations"),
    [("local", "supervised", LOCAL), ("group", "supervised", GROUP), ("local", "ordinary", ORDINARY)],
)
async def test_what_comes_later_than_the_lease_costs_at_most_another_attempt(
    kind: str, profile: str, operations: tuple[str, ...]
) -> None:
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        await here.start_worker(profile=profile, supervisor=children(6))
        rules = spoil_one_each(here, *operations, faults=LATE)
        handles = [await here.start(kind, "work", number) for number in range(12)]
        for number, handle in enumerate(handles):
            assert await handle.result() == number
            await here.check(handle)

        all_met(here, rules)


async def test_what_a_queued_attempt_says_after_its_lease_is_not_taken() -> None:
    async with rig() as here:
        await here.start_worker(supervisor=children(1), queued_activities=len(ATTEMPT))
        held = [here.proxy.add(Hold("request"), operation) for operation in ATTEMPT]
        handles = [await here.start("queued", "stumble", number) for number in range(len(ATTEMPT))]
        late = [await rule.acted() for rule in held]
        await here.server.expire_lease(worker_id="w")
        for rule in held:
            rule.release()
        for number, handle in enumerate(handles):
            assert await handle.result() == number
            await here.check(handle)

        # Who only looks gets a whole answer, that it is to stop; everything else is refused.
        looks = ("activity_task_status", "heartbeat_activity_task")
        taken = [seen for seen in late if seen.status not in (None, 409)]
        assert [str(seen) for seen in taken if seen.operation not in looks] == []
        all_met(here, held)


@pytest.mark.parametrize("operation", ATTEMPT[:3])
async def test_an_unreadable_answer_about_a_queued_attempt_ends_it(operation: str) -> None:
    async with rig() as here:
        await here.start_worker(queued_activities=1)
        spoilt = here.proxy.add(Rewrite(unreadable), operation)
        handle = await here.start("queued", "work", "value")
        await spoilt.acted()
        ended = await here.event("attempt_ended")
        await here.server.expire_lease(worker_id="w")

        assert await handle.result() == "value"
        await here.check(handle)
        assert (ended["outcome"], ended["published"]) == ("abandoned", False)


async def test_the_beginning_and_the_end_of_a_registration() -> None:
    async with rig() as here:
        rules = spoil_one_each(here, "cluster_info", faults=FAULTS)
        for number, fault in enumerate(FAULTS):
            rules += [
                here.proxy.add(fault, operation, worker=f"w{number}")
                for operation in ("register_worker", "deregister_worker")
            ]

        async def live(name: str) -> None:
            (await here.start_worker(name)).drain()

        async with trio.open_nursery() as nursery:
            for number in range(len(FAULTS)):
                nursery.start_soon(live, f"w{number}")
        await here.events("deregistered", len(FAULTS))

        all_met(here, rules)


async def test_a_worker_says_that_it_is_there() -> None:
    def stale(body: Any) -> Any:
        return body if body["task"] else {**body, "poll_status": "stale_worker_registration"}

    async with rig() as here:
        # Each poll that tells of a stale registration makes the worker look after it at once.
        telling = here.proxy.add(Rewrite(stale), "poll_workflow_task", times=None)
        rules = spoil_one_each(here, "heartbeat_worker", faults=(*FAULTS, Rewrite(unreadable)))
        await here.start_worker(poll_timeout=0)
        await here.proxy.wait_for(lambda seen: all(rule.used_up for rule in rules))
        here.proxy.remove(telling)
        handle = await here.start("local", "work", "value")

        assert await handle.result() == "value"
        await here.check(handle)
        all_met(here, rules)
        assert [seen.given for seen in here.proxy.exchanges if seen.operation == "register_worker"] == [201]
