"""Workflow tasks: polling once per request id, paging, renewal, completion, failure, ownership (worker.md §2)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from proctor.server.rules.book import Settings
from server.wire import EMPTY_LIST, ENVELOPE, TEXT, Claim, Wire, Worker, instant, running_server, side_effect


async def test_a_task_has_every_field_of_the_contract(wire: Wire, worker: Worker) -> None:
    run = await wire.start(input={"codec": "avro", "blob": EMPTY_LIST})
    reply = (await worker.try_poll()).ok()
    assert reply["poll_status"] == "leased"
    task = reply["task"]
    assert task["task_kind"] == "workflow"
    assert (task["workflow_id"], task["run_id"]) == ("wf", run["run_id"])
    assert (task["workflow_task_attempt"], task["workflow_type"]) == (1, "t")
    assert (task["payload_codec"], task["arguments"]) == ("avro", {"codec": "avro", "blob": EMPTY_LIST})
    assert (task["task_queue"], task["lease_owner"]) == ("q", "w")
    assert task["lease_expires_at"] == instant(10)
    assert (task["last_history_sequence"], task["total_history_events"]) == (2, 2)
    assert task["next_history_page_token"] is None
    assert [event["event_type"] for event in task["history_events"]] == ["StartAccepted", "WorkflowStarted"]
    assert {"id", "sequence", "payload", "workflow_task_id", "workflow_command_id", "recorded_at"} <= set(
        task["history_events"][0]
    )
    nulls = ("workflow_update_id", "timer_id", "signal_name", "condition_wait_id", "connection")
    assert all(task[name] is None for name in nulls)
    assert "cancellation_request" not in task
    assert task["sticky_replay_mode"] == "cold_replay"


async def test_the_same_request_id_gives_the_same_lease(wire: Wire, worker: Worker) -> None:
    await wire.start("one")
    await wire.start("two")
    first = await worker.poll(request_id="same")
    await first.prepared()
    second = await worker.poll(request_id="same")
    assert second.task["task_id"] == first.task["task_id"]
    assert second.task["workflow_task_attempt"] == 1
    assert len(second.task["history_events"]) == 4
    assert (await worker.poll(request_id="other")).task["workflow_id"] == "two"
    assert (await worker.try_poll(request_id="third")).ok()["task"] is None


async def test_a_request_id_is_free_again_when_its_lease_is_gone(wire: Wire, worker: Worker) -> None:
    await wire.start("one")
    (await (await worker.poll(request_id="same")).complete()).ok()
    assert (await worker.try_poll(request_id="same")).ok()["task"] is None
    await wire.start("two")
    claim = await worker.poll(request_id="same")
    assert claim.task["workflow_id"] == "two"
    wire.clock.advance(10)
    assert (await worker.poll(request_id="same")).task["workflow_task_attempt"] == 2


async def test_request_ids_of_different_workers_do_not_meet(wire: Wire, worker: Worker) -> None:
    other = Worker(wire, "other")
    await other.register()
    await wire.start()
    await worker.poll(request_id="same")
    assert (await other.try_poll(request_id="same")).ok()["task"] is None


async def test_refusals_of_a_poll(wire: Wire, worker: Worker) -> None:
    stranger = Worker(wire, "stranger")
    assert (await stranger.try_poll()).refused(412, "worker_not_registered")["task"] is None
    (await worker.try_poll(task_queue="elsewhere")).refused(409, "task_queue_mismatch")
    (await worker.try_poll(build_id="b")).refused(409, "build_id_mismatch")
    for broken in ({"timeout_seconds": 61}, {"timeout_seconds": True}, {"history_page_size": 0}, {"task_kinds": ["x"]}):
        (await worker.try_poll(**broken)).refused(422, "validation_failed")
    (await worker.try_poll(task_kinds=["workflow", "update_validation"])).refused(
        409, "update_validation_capability_not_advertised"
    )
    await worker.register(supported_workflow_types=[])
    assert (await worker.try_poll()).ok()["poll_status"] == "no_workflow_capability"


async def test_tasks_go_by_workflow_type_and_queue(wire: Wire, worker: Worker) -> None:
    await wire.start("one", "other-type")
    await wire.start("two", "t", task_queue="other-queue")
    assert (await worker.try_poll()).ok()["poll_status"] == "empty"


async def test_history_comes_in_pages(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll(request_id="r")
    (await claim.checkpoint("c", 1, *[side_effect()] * 5)).ok()
    small = await worker.poll(request_id="r", history_page_size=3)
    assert [event["sequence"] for event in small.task["history_events"]] == [1, 2, 3]
    token = small.task["next_history_page_token"]
    seen = []
    while token is not None:
        page = (await claim.post("/history", next_history_page_token=token, history_page_size=3)).ok()
        seen += [event["sequence"] for event in page["history_events"]]
        assert page["total_history_events"] == 7
        token = page["next_history_page_token"]
    assert seen == [4, 5, 6, 7]
    whole = (await claim.post("/history", next_history_page_token="MA==")).ok()
    assert [event["sequence"] for event in whole["history_events"]] == list(range(1, 8))
    for bad in ("", "%%%", base64.b64encode(b"-1").decode(), base64.b64encode(b"x").decode(), None, 3):
        (await claim.post("/history", next_history_page_token=bad)).refused(400, "invalid_page_token")
    end = base64.b64encode(b"99").decode()
    beyond = (await claim.post("/history", next_history_page_token=end)).ok()
    assert (beyond["history_events"], beyond["next_history_page_token"]) == ([], None)


async def test_a_heartbeat_renews_the_lease(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(9)
    body = (await claim.post("/heartbeat")).ok()
    assert body["renewed"] is True
    assert body["lease_expires_at"] == instant(19)
    assert (body["lease_owner"], body["task_status"], body["reason"]) == ("w", "leased", None)
    assert "cancellation_request" not in body


OPERATIONS: dict[str, dict[str, Any]] = {
    "/history": {"next_history_page_token": "MA=="},
    "/heartbeat": {},
    "/complete": {"commands": [{"type": "complete_workflow", "result": ENVELOPE}]},
    "/fail": {"failure": {"message": "m"}},
}


@pytest.mark.parametrize("path", OPERATIONS)
async def test_ownership_refusals_come_in_order(wire: Wire, worker: Worker, path: str) -> None:
    await wire.start()
    claim = await worker.poll()
    wrong = {"lease_owner": "other", "workflow_task_attempt": 7}

    async def ask(**changes: Any) -> Any:
        return await Claim(worker, {**claim.task, **changes}).post(path, **OPERATIONS[path])

    missing = (await ask(task_id="nowhere", **wrong)).refused(404, "task_not_found")
    assert (missing["task_id"], missing["workflow_task_attempt"]) == ("nowhere", 7)
    assert (await ask(**wrong)).refused(409, "lease_owner_mismatch")["lease_owner"] == "w"
    assert (await ask(workflow_task_attempt=7)).refused(409, "workflow_task_attempt_mismatch")["current_attempt"] == 1
    wire.clock.advance(10)
    expired = (await ask(**wrong)).refused(409, "lease_expired")
    assert (expired["task_status"], expired["lease_owner"], expired["lease_expires_at"]) == ("leased", "w", instant(10))
    (await ask(**wrong)).refused(409, "task_not_leased")
    (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
    (await ask()).refused(409, "run_closed")


@pytest.mark.parametrize("path", OPERATIONS)
@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"lease_owner": None}, "lease_owner"),
        ({"lease_owner": 7}, "lease_owner"),
        ({"workflow_task_attempt": None}, "workflow_task_attempt"),
        ({"workflow_task_attempt": True}, "workflow_task_attempt"),
        ({"workflow_task_attempt": 0}, "workflow_task_attempt"),
    ],
)
async def test_a_request_without_its_identity_is_not_valid(
    wire: Wire, worker: Worker, path: str, broken: dict[str, Any], field: str
) -> None:
    await wire.start()
    claim = await worker.poll()
    reply = await claim.post(path, **{**OPERATIONS[path], **broken})
    assert list(reply.refused(422, "validation_failed")["errors"]) == [field]


async def test_completion_closes_the_run_once(wire: Wire, worker: Worker) -> None:
    run = await wire.start()
    claim = await worker.poll()
    body = (await claim.complete(side_effect(), {"type": "complete_workflow", "result": ENVELOPE})).ok()
    assert body == {
        **body,
        "task_id": claim.task["task_id"],
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": True,
        "run_id": run["run_id"],
        "run_status": "completed",
        "created_task_ids": [],
        "reason": None,
    }
    (await claim.complete()).refused(409, "task_not_leased")
    events = await wire.events()
    assert [event["event_type"] for event in events[2:]] == ["SideEffectRecorded", "WorkflowCompleted"]
    assert events[-1]["payload"] == {"output": ENVELOPE, "payload_codec": "avro"}
    assert (await wire.describe())["output_envelope"] == ENVELOPE


async def test_a_failed_workflow_says_why(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    command = {
        "type": "fail_workflow",
        "message": " no luck ",
        "exception_type": "Oops",
        "exception_class": "app.Oops",
        "non_retryable": True,
        "failed_step_sequence": 1,
        "failed_activity_execution_id": "E",
    }
    assert (await claim.complete(command)).ok()["run_status"] == "failed"
    payload = (await wire.events())[-1]["payload"]
    assert (payload["message"], payload["exception_class"]) == ("no luck", "app.Oops")
    assert (payload["non_retryable"], payload["source_id"]) == (True, "E")


async def test_search_attributes_are_merged(wire: Wire, worker: Worker) -> None:
    await wire.start(search_attributes={"a": 1, "b": 2})
    claim = await worker.poll()
    command = {"type": "upsert_search_attributes", "attributes": {"b": " x ", "a": None, "c": ["k"]}}
    (await claim.complete(command, {"type": "complete_workflow", "result": ENVELOPE})).ok()
    assert (await wire.describe())["search_attributes"] == {"b": "x", "c": ["k"]}
    payload = (await wire.events())[2]["payload"]
    assert payload["merged"] == {"b": "x", "c": ["k"]}


@pytest.mark.parametrize(
    ("commands", "field"),
    [
        ([], "commands"),
        (["text"], "commands"),
        ([{"type": "start_nothing", "delay_seconds": 1}], "commands.0.type"),
        ([{"type": "start_timer", "delay_seconds": -1}], "commands.0.delay_seconds"),
        ([{"type": "start_timer"}], "commands.0.delay_seconds"),
        ([{"type": "start_service_operation", "endpoint_name": "e"}], "commands.0.type"),
        ([{"type": "open_condition_wait", "timeout_seconds": "1"}], "commands.0.timeout_seconds"),
        ([{"type": ["complete_workflow"]}], "commands.0.type"),
        ([side_effect(), {"type": "record_side_effect"}], "commands.1.result"),
        ([{"type": "complete_workflow", "result": {"codec": "json", "blob": "1"}}], "commands.0.result"),
        ([{"type": "complete_workflow", "result": TEXT}] * 2, "commands.1.type"),
        ([{"type": "fail_workflow", "message": " "}], "commands.0.message"),
        ([{"type": "fail_workflow", "message": "m", "failed_step_sequence": 1}], "commands.0.failed_step_sequence"),
        ([{**side_effect(), "retry_policy": {}}], "commands.0.retry_policy"),
        (
            [{"type": "record_version_marker", "change_id": "c", "version": 3, "min_supported": 1, "max_supported": 2}],
            "commands.0.version",
        ),
        ([{"type": "upsert_search_attributes", "attributes": {"a b": 1}}], "commands.0.attributes.a b"),
    ],
)
async def test_a_bad_batch_is_refused_as_a_whole(wire: Wire, worker: Worker, commands: list[Any], field: str) -> None:
    await wire.start()
    claim = await worker.poll()
    reply = await claim.post("/complete", commands=commands)
    assert field in reply.refused(422, "validation_failed")["errors"]
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.complete()).ok()


async def test_a_turn_of_markers_only_is_followed_by_another(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (created,) = (await (await worker.poll()).complete(side_effect())).ok()["created_task_ids"]
    claim = await worker.poll()
    assert claim.task["task_id"] == created
    assert claim.task["total_history_events"] == 3


@pytest.mark.parametrize(
    "failure",
    [
        {"type": "WorkflowTaskWaitingForHistory", "message": "anything"},
        {"type": " WORKFLOWTASKWAITINGFORHISTORY ", "message": ""},
        {"message": "Workflow task waiting for scheduled history. And more."},
    ],
)
async def test_waiting_for_history_is_no_failure(wire: Wire, worker: Worker, failure: dict[str, str]) -> None:
    await wire.start()
    claim = await worker.poll()
    body = (await claim.post("/fail", failure=failure)).ok()
    assert (body["outcome"], body["recorded"], body["reason"]) == ("waiting_for_history", True, None)
    assert body["next_task_id"] is None
    (await claim.post("/fail", failure=failure)).refused(409, "task_not_leased")
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    description = await wire.describe()
    assert (description["status"], description["workflow_task_failures"]) == ("waiting", 0)
    assert await worker.idle()


async def test_a_broken_workflow_is_retried_ever_more_slowly_and_shown(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    for attempt, pause in enumerate([1, 2, 4, 8, 16, 32, 60, 60], start=1):
        body = (await claim.post("/fail", failure={"message": "replay failed: x"})).ok()
        assert (body["outcome"], body["recorded"]) == ("failed", True)
        wire.clock.advance(pause - 0.001)
        assert await worker.idle()
        wire.clock.advance(0.001)
        description = await wire.describe()
        assert (description["workflow_task_failures"], description["wait_reason"]) == (attempt, "replay failed: x")
        claim = await worker.poll()
        assert claim.task["workflow_task_attempt"] == attempt + 1
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.complete(side_effect())).ok()
    assert (await wire.describe())["workflow_task_failures"] == 0


async def test_commands_above_the_payload_limit_are_refused() -> None:
    async with running_server(Settings(max_payload_bytes=100)) as wire:
        worker = Worker(wire)
        await worker.register()
        await wire.start()
        claim = await worker.poll()
        big = {"type": "complete_workflow", "result": {"codec": "avro", "blob": "A" * 104}}
        assert "commands.0.result" in (await claim.complete(big)).refused(422, "validation_failed")["errors"]


async def test_a_claim_that_ends_over_a_running_attempt_is_followed_up(wire: Wire, worker: Worker) -> None:
    """Nobody may forget an attempt: when its lease has ended, a task for its recovery becomes available."""
    await wire.start()
    claim = await worker.poll()
    await claim.prepared()
    waiting = {"type": "WorkflowTaskWaitingForHistory", "message": "m"}
    assert (await claim.post("/fail", failure=waiting)).ok()["next_task_id"] is not None
    wire.clock.advance(9)
    assert await worker.idle()
    wire.clock.advance(1)
    (await (await worker.poll()).recover()).ok()


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"message_stream_cursors": [{"stream_name": "s", "through_position": 1}]}, "message_stream_cursors"),
        ({"message_stream_waits": [{"stream_name": "s", "after_position": 1}]}, "message_stream_waits"),
        (
            {"commands": [{**side_effect(), "workflow_stream": {"operation": "close", "stream_name": "s"}}]},
            "commands.0.workflow_stream",
        ),
    ],
)
async def test_streams_that_nobody_could_read_are_refused(
    wire: Wire, worker: Worker, extra: dict[str, Any], field: str
) -> None:
    await wire.start()
    claim = await worker.poll()
    refused = await claim.post("/complete", **{"commands": [side_effect()], **extra})
    assert list(refused.refused(422, "validation_failed")["errors"]) == [field]
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
