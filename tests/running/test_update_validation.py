"""Validators of a worker on a mocked clock: approved, rejected, or not decided at all; never the worker's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.codec import envelope
from proctor.errors import NegotiationRefused
from running.lies import set_to, without
from running.rigs import Rig
from running.scripted_server import Refusal, ScriptedServer, Silence

CONTRACT = {
    "supported": True,
    "acceptance_boundary": "validator_approved",
    "worker_capability": "update_validation_tasks",
    "workflow_contract_field": "update_validators",
    "task_poll": {
        "strategy": "multiplexed",
        "endpoint": "/worker/workflow-tasks/poll",
        "request_field": "task_kinds",
        "response_discriminator": "task.task_kind",
        "task_kinds": ["workflow", "update_validation"],
    },
}


@workflow.defn(name="wf")
class Guarded:
    def __init__(self) -> None:
        self.most = 10

    @workflow.signal("raise")
    def more(self, most: int) -> None:
        self.most = most

    @workflow.update("set")
    def put(self, amount: int) -> int:
        return amount

    @workflow.update_validator("set")
    def check(self, amount: int) -> Any:
        if amount > self.most:
            raise ValueError(f"at most {self.most}")
        return amount >= 0

    async def run(self, ctx: Any) -> None:
        await ctx.wait_condition(lambda: False, key="never")


def rig(**options: Any) -> Rig:
    server = ScriptedServer()
    server.capabilities |= {"update_validation_tasks": True, "synchronous_update_validation": CONTRACT}
    made = Rig(workflow_class=Guarded, server=server, **options)
    server.start_run()
    return made


def lease(made: Rig, amount: int, **changes: Any) -> None:
    """Let the next poll lease the validation of an update instead of the workflow task."""
    server = made.server

    def validation(body: dict[str, Any]) -> None:
        body["task"] = {
            "task_kind": "update_validation",
            "update_validation_task_id": "V",
            "update_id": "V",
            "update_validation_attempt": 1,
            "workflow_id": "wf-1",
            "run_id": "R",
            "workflow_type": "wf",
            "update_name": "set",
            "update_arguments": envelope([amount]),
            "workflow_arguments": envelope([]),
            "payload_codec": "avro",
            "task_queue": "q",
            "lease_owner": "w",
            "lease_expires_at": server.stamp(10),
            "server_time": server.stamp(0),
            "history_events": list(server.history),
            **changes,
        }

    server.lie("poll", validation)


async def decided(made: Rig) -> dict[str, Any]:
    """Serve until the worker says what became of a validation."""
    with trio.fail_after(60):
        async with made.serving():
            while not (found := [event for event in made.events if event["event"] == "update_validation"]):  # noqa: ASYNC110
                await trio.sleep(0.1)
    return found[0]


async def test_a_worker_with_validators_asks_for_validations_and_approves(autojump_clock: MockClock) -> None:
    made = rig()
    lease(made, 3)

    assert (await decided(made))["outcome"] == "approved"

    assert made.server.bodies("approve") == [{"lease_owner": "w", "update_validation_attempt": 1}]
    assert made.server.bodies("poll")[0]["task_kinds"] == ["workflow", "update_validation"]
    (body,) = made.server.bodies("register")
    assert {"workflow_updates", "update_validation_tasks"} <= set(body["capabilities"])
    assert body["workflow_command_contracts"]["wf"]["update_validators"] == ["set"]


@pytest.mark.parametrize(
    ("amount", "message", "kind"), [(11, "at most 10", "ValueError"), (-1, "returned False", "ValueError")]
)
async def test_what_the_validator_refuses_is_rejected(
    amount: int, message: str, kind: str, autojump_clock: MockClock
) -> None:
    made = rig()
    lease(made, amount)

    assert (await decided(made))["outcome"] == "rejected"

    (body,) = made.server.bodies("reject")
    assert body["failure"]["reason"] == "update_validator_rejected"
    assert message in body["failure"]["message"]
    assert body["failure"]["type"] == kind
    assert made.server.bodies("approve") == []


async def test_the_validator_sees_the_state_that_history_leads_to(autojump_clock: MockClock) -> None:
    made = rig()
    made.server._record("SignalReceived", {"signal_name": "raise", "arguments": envelope([50])})
    lease(made, 40)

    assert (await decided(made))["outcome"] == "approved"


@pytest.mark.parametrize(
    "changes",
    [
        {"workflow_type": "other"},
        {"update_name": "other"},
        {"update_arguments": {"codec": "json", "blob": "W10="}},
        {"payload_codec": "json"},
        {"history_events": [{"event_type": 7}]},
    ],
)
async def test_what_cannot_be_asked_is_not_called_a_rejection(
    changes: dict[str, Any], autojump_clock: MockClock
) -> None:
    made = rig()
    lease(made, 3, **changes)

    assert (await decided(made))["outcome"] == "failed"

    (body,) = made.server.bodies("reject")
    assert body["failure"]["reason"] == "update_validation_worker_failed"


def _refused(status: int, reason: str) -> Callable[[dict[str, Any]], Any]:
    def lie(body: dict[str, Any]) -> None:
        raise Refusal(status, {"reason": reason})

    return lie


def _silent(body: dict[str, Any]) -> None:
    raise Silence


@pytest.mark.parametrize("lie", [_refused(409, "update_validation_lease_expired"), _refused(500, "oops"), _silent])
async def test_a_decision_that_is_refused_or_lost_is_left_at_that(
    lie: Callable[[dict[str, Any]], Any], autojump_clock: MockClock
) -> None:
    made = rig()
    made.server.lie("approve", lie)
    lease(made, 3)

    assert (await decided(made))["outcome"] == "abandoned"
    assert made.server.operations("reject") == []


async def test_nothing_is_decided_behind_the_lease(autojump_clock: MockClock) -> None:
    async def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        await trio.sleep(11)
        return work()

    made = rig(apart=apart)
    lease(made, 3)

    event = await decided(made)

    assert (event["outcome"], event["reason"]) == ("abandoned", "update_validation_lease_expired")
    assert made.server.operations("approve", "reject") == []


_LYING: list[Callable[[dict[str, Any]], Any]] = [
    set_to("lease_owner", "other"),
    set_to("task_queue", "other"),
    set_to("update_validation_attempt", 0),
    set_to("update_validation_task_id", ""),
    set_to("update_name", None),
    set_to("history_events", {}),
    set_to("lease_expires_at", "soon"),
    without("update_id"),
    without("workflow_type"),
]


@pytest.mark.parametrize("lie", _LYING)
async def test_a_claim_that_lies_is_not_worked_on_and_the_worker_goes_on(
    lie: Callable[[dict[str, Any]], Any], autojump_clock: MockClock
) -> None:
    made = rig()
    lease(made, 3)
    (honest,) = made.server.lies["poll"]

    def lying(body: dict[str, Any]) -> None:
        honest(body)
        lie(body["task"])

    made.server.lies["poll"][0] = lying
    lease(made, 3)

    assert (await decided(made))["outcome"] == "approved"
    assert len(made.server.operations("approve", "reject")) == 1


@pytest.mark.parametrize(
    "change",
    [
        set_to("update_validation_tasks", False),
        set_to("update_validation_tasks", 1),
        without("synchronous_update_validation"),
        *(
            set_to("synchronous_update_validation", {**CONTRACT, name: "other"})
            for name in (
                "supported",
                "acceptance_boundary",
                "worker_capability",
                "workflow_contract_field",
                "task_poll",
            )
        ),
    ],
)
async def test_a_server_that_would_accept_forbidden_updates_sees_no_registration(
    change: Callable[[dict[str, Any]], Any], autojump_clock: MockClock
) -> None:
    made = rig()
    change(made.server.capabilities)

    with pytest.raises(NegotiationRefused, match="would accept updates that they forbid") as caught:
        await made.service.run()

    assert caught.value.missing == ("worker_protocol.server_capabilities.update_validation_tasks",)
    assert made.server.operations() == ["discovery"]


async def test_a_worker_without_validators_asks_for_workflow_tasks_alone(autojump_clock: MockClock) -> None:
    made = Rig()
    made.server.lie("poll", lambda body: body.update(task={"task_kind": "update_validation"}))

    await made.idle_for(5)

    assert "task_kinds" not in made.server.bodies("poll")[0]
    assert made.server.operations("approve", "reject") == []
