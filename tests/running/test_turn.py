"""One workflow task from lease to end: what is sent for each decision, and what is never sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.codec import decode_value, envelope
from proctor.core.replay.decision import Commands
from proctor.errors import HistoryError, NonDeterminismError, PayloadError, UsageError
from running.rigs import Rig, one_call
from running.scripted_children import hangs, returns
from running.scripted_server import Refusal, ScriptedServer

CLOSING = ("complete", "fail")


def refusing(status: int, reason: str) -> Callable[[dict[str, Any]], None]:
    def lie(body: dict[str, Any]) -> None:
        raise Refusal(status, {"reason": reason})

    return lie


def concludes(*commands: dict[str, Any]) -> Callable[..., Any]:
    return lambda definition, task: Commands(commands)


def breaks(error: Exception) -> Callable[..., Any]:
    def replayed(definition: Any, task: Any) -> Any:
        raise error

    return replayed


def turns(rig: Rig) -> list[tuple[str, str]]:
    return [(event["outcome"], event["reason"]) for event in rig.events if event["event"] == "workflow_task"]


async def test_commands_complete_the_task(autojump_clock: MockClock) -> None:
    rig = Rig(replayed=concludes({"type": "start_timer"}, {"type": "upsert_memo"}))

    await rig.run_for(1)

    assert rig.server.bodies("complete")[0]["commands"] == [{"type": "start_timer"}, {"type": "upsert_memo"}]
    assert turns(rig) == [("completed", "start_timer, upsert_memo")]


@workflow.defn(name="wf")
class Remembers:
    """Updates its memo alone, or before a local activity."""

    def __init__(self, before_a_call: bool = False) -> None:
        self.before_a_call = before_a_call

    async def run(self, ctx: Any) -> None:
        await ctx.upsert_memo({"seen": True})
        if self.before_a_call:
            await ctx.local_activity("act", ["in"])


@workflow.defn(name="wf")
class RemembersBeforeACall(Remembers):
    def __init__(self) -> None:
        super().__init__(before_a_call=True)


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
@pytest.mark.parametrize("workflow_class", [Remembers, RemembersBeforeACall])
async def test_a_memo_is_not_updated_on_a_server_that_does_not_offer_it(
    profile: str, workflow_class: type[Any], autojump_clock: MockClock
) -> None:
    rig = Rig(returns("unused"), workflow_class=workflow_class, profile=profile)
    rig.server.capabilities["workflow_memo_updates"] = {"supported": False}

    await rig.run_for(1)

    (body,) = rig.server.bodies("fail")
    assert body["failure"]["type"] == "RuntimeCapabilityUnsupported"
    assert "workflow_memo_updates" in body["failure"]["message"]
    assert rig.server.operations("complete") == rig.server.operations("checkpoint") == []


async def test_a_run_that_waits_is_reported_as_waiting_not_completed(autojump_clock: MockClock) -> None:
    rig = Rig(replayed=concludes())

    await rig.run_for(1)

    (body,) = rig.server.bodies("fail")
    assert body["failure"]["type"] == "WorkflowTaskWaitingForHistory"
    assert rig.server.operations("complete") == []


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (NonDeterminismError("no", sequence=3), "NonDeterministicReplayError", "no"),
        (HistoryError("torn"), "HistoryError", "torn"),
        (PayloadError("invalid_payload_framing", "x"), "WorkflowPayloadDecodeError", "invalid_payload_framing"),
        (KeyError("defect"), "KeyError", "the replay broke"),
        (ValueError("x" * 100_000), "ValueError", "the replay broke"),
    ],
)
async def test_a_replay_that_cannot_go_on_fails_the_task_and_not_the_worker(
    autojump_clock: MockClock, error: Exception, kind: str, told: str
) -> None:
    rig = Rig(replayed=breaks(error))

    await rig.run_for(0.5)

    failure = rig.server.bodies("fail")[0]["failure"]
    assert failure["type"] == kind
    assert told in failure["message"]
    assert len(failure["message"].encode()) <= 16 * 1024
    assert rig.events[-1]["event"] == "deregistered"


async def test_a_task_that_fails_again_and_again_does_not_spin(autojump_clock: MockClock) -> None:
    class Again(ScriptedServer):
        async def _do_fail(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            self.make_ready()
            return await super()._do_fail(body)

    rig = Rig(server=Again(), replayed=breaks(HistoryError("torn")))

    await rig.run_for(60)

    assert 3 <= len(rig.server.bodies("fail")) <= 8


async def test_an_unknown_workflow_fails_the_task_and_names_what_is_registered(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie("poll", lambda body: body["task"].update(workflow_type="other"))

    await rig.run_for(0.5)

    failure = rig.server.bodies("fail")[0]["failure"]
    assert failure["type"] == "UnknownWorkflowType"
    assert "'other'" in failure["message"]
    assert "wf" in failure["message"]


@workflow.defn(name="wf")
class Told:
    """Has an update, and waits for ever behind a timer."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.update("tell")
    def tell(self, number: int) -> list[int]:
        self.seen.append(number)
        return self.seen

    async def run(self, ctx: Any) -> None:
        await ctx.sleep(5)
        await ctx.wait_condition(lambda: False, key="never")


def told_rig(*events: tuple[str, dict[str, Any]]) -> Rig:
    """Give a worker whose first task is for the update U."""
    rig = Rig(workflow_class=Told)
    rig.server.start_run()
    for kind, payload in (
        *events,
        ("UpdateAccepted", {"update_id": "U", "update_name": "tell", "arguments": envelope([7])}),
    ):
        rig.server._record(kind, payload)
    rig.server.lie("poll", lambda body: body["task"].update(workflow_update_id="U"))
    return rig


async def test_a_task_for_an_update_is_completed_by_its_answer_alone(autojump_clock: MockClock) -> None:
    rig = told_rig()

    await rig.idle_for(1)

    ((command,),) = [body["commands"] for body in rig.server.bodies("complete")]
    assert (command["type"], command["update_id"]) == ("complete_update", "U")
    assert decode_value(command["result"], None) == [7]
    assert "workflow_updates" in rig.server.bodies("register")[0]["capabilities"]


@pytest.mark.parametrize(
    ("accepted", "kind"),
    [
        ({"update_id": "other"}, "UpdateNotFound"),
        ({"update_name": "nothing"}, "UnknownUpdate"),
        ({"update_name": None}, "InvalidUpdate"),
        ({"arguments": envelope([])}, "TypeError"),
        ({"arguments": {"codec": "json", "blob": "W10="}}, "PayloadError"),
    ],
)
async def test_an_update_that_cannot_be_run_fails_as_an_update(
    accepted: dict[str, Any], kind: str, autojump_clock: MockClock
) -> None:
    rig = told_rig()
    rig.server.history[-1]["payload"].update(accepted)

    await rig.idle_for(1)

    ((command,),) = [body["commands"] for body in rig.server.bodies("complete")]
    assert (command["type"], command["update_id"], command["exception_type"]) == ("fail_update", "U", kind)


async def test_nondeterminism_before_an_update_fails_the_task_and_not_the_update(autojump_clock: MockClock) -> None:
    rig = told_rig(
        ("ActivityScheduled", {"sequence": 1, "activity_type": "other"}),
        ("ActivityCompleted", {"sequence": 1, "activity_type": "other", "result": envelope(1)}),
    )

    await rig.idle_for(0.5)

    assert rig.server.bodies("complete") == []
    assert rig.server.bodies("fail")[0]["failure"]["type"] == "NonDeterministicReplayError"


async def test_a_worker_without_updates_does_not_claim_to_have_them(autojump_clock: MockClock) -> None:
    rig = Rig()

    await rig.idle_for(1)

    assert "workflow_updates" not in rig.server.bodies("register")[0]["capabilities"]


async def test_all_pages_are_loaded_before_the_replay(autojump_clock: MockClock) -> None:
    seen: list[int] = []

    def replayed(definition: Any, task: Any) -> Any:
        seen.append(len(task.history))
        return Commands(({"type": "start_timer"},))

    rig = Rig(replayed=replayed)
    rig.server.lie("poll", lambda body: body["task"].update(next_history_page_token="p2"))
    rig.server.lie("history", lambda body: body.update(next_history_page_token="p3"))

    await rig.run_for(1)

    assert [body["next_history_page_token"] for body in rig.server.bodies("history")] == ["p2", "p3"]
    assert seen == [6]


# -- completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["lease_expired", "task_not_leased", "run_closed", "workflow_task_attempt_mismatch"])
async def test_a_completion_refused_for_a_lost_claim_is_the_end(autojump_clock: MockClock, reason: str) -> None:
    rig = Rig(replayed=concludes({"type": "start_timer"}))
    rig.server.lie("complete", refusing(409, reason))

    await rig.run_for(1)

    assert rig.server.operations("fail") == []
    assert turns(rig) == [("abandoned", reason)]


async def test_a_completion_refused_for_its_content_fails_the_task(autojump_clock: MockClock) -> None:
    rig = Rig(replayed=concludes({"type": "start_timer"}))
    rig.server.lie("complete", refusing(422, "structural_limit_exceeded"))

    await rig.run_for(0.5)

    failure = rig.server.bodies("fail")[0]["failure"]
    assert failure["type"] == "WorkflowTaskCompletionRefused"
    assert "structural_limit_exceeded" in failure["message"]


async def test_commands_without_a_wire_form_fail_the_task_and_not_the_worker(autojump_clock: MockClock) -> None:
    rig = Rig(replayed=concludes({"type": "start_timer"}))

    def not_sendable(body: dict[str, Any]) -> None:
        raise UsageError("the body of POST /complete has no JSON form")

    rig.server.lie("complete", not_sendable)

    await rig.run_for(0.5)

    assert rig.server.bodies("fail")[0]["failure"]["type"] == "WorkflowTaskNotSendable"


# -- recovery --------------------------------------------------------------------------------------


def interrupted(server: ScriptedServer) -> None:
    server.attempt = {"id": "A-old"}
    server._record_activity("ActivityScheduled", 1, "act", attempt_id=None)
    server._record_activity("ActivityStarted", 1, "act")


class Interrupted(ScriptedServer):
    """Its run was left by another worker in the middle of an attempt."""

    def start_run(self, *arguments: Any) -> None:
        super().start_run(*arguments)
        interrupted(self)


async def test_an_interrupted_attempt_is_recovered_never_run_again_on_this_claim(autojump_clock: MockClock) -> None:
    rig = Rig(server=Interrupted())

    await rig.run_to_close()

    assert rig.children.jobs == []
    assert rig.server.operations("prepare") == []
    assert rig.server.closed == "fail_workflow"


async def test_a_recovery_that_schedules_a_retry_ends_the_turn(autojump_clock: MockClock) -> None:
    rig = Rig(server=Interrupted())
    rig.server.lie(
        "recover",
        lambda body: body.update(event_type="ActivityRetryScheduled", claim_released=True, created_task_ids=["T2"]),
    )

    await rig.run_for(1)

    assert rig.server.operations(*CLOSING, "prepare") == []
    assert turns(rig) == [("released", "ActivityRetryScheduled")]


@pytest.mark.parametrize("reason", ["local_activity_previous_attempt_live", "local_activity_original_claim_live"])
async def test_a_refused_recovery_leaves_the_claim_alone(autojump_clock: MockClock, reason: str) -> None:
    rig = Rig(server=Interrupted())
    rig.server.lie("recover", refusing(409, reason))

    await rig.run_for(1)

    assert rig.server.operations(*CLOSING, "prepare") == []
    assert turns(rig) == [("abandoned", reason)]


@pytest.mark.parametrize(
    "reason", ["local_activity_preparation_mismatch", "local_activity_retry_not_due", "workflow_claim_expired"]
)
async def test_a_refused_preparation_leaves_the_claim_alone(autojump_clock: MockClock, reason: str) -> None:
    rig = Rig()
    rig.server.lie("prepare", refusing(409, reason))

    await rig.run_for(1)

    assert rig.children.jobs == []
    assert rig.server.operations(*CLOSING, "outcome") == []
    assert turns(rig) == [("abandoned", reason)]


# -- the claim's lease -----------------------------------------------------------------------------


class SlowHistory(ScriptedServer):
    """Answers history requests after a while, each within the limit of one operation."""

    async def _do_history(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        await trio.sleep(4)
        return await super()._do_history(body)


async def test_a_claim_without_an_attempt_is_renewed_beside_the_work(autojump_clock: MockClock) -> None:
    rig = Rig(server=SlowHistory(), replayed=concludes({"type": "start_timer"}))
    rig.server.lie("poll", lambda body: body["task"].update(next_history_page_token="p1"))
    rig.server.lie("history", *(lambda body, n=n: body.update(next_history_page_token=f"q{n}") for n in range(3)))

    await rig.run_for(20)

    assert len(rig.server.bodies("claim_heartbeat")) == 5
    assert turns(rig) == [("completed", "start_timer")]


async def test_a_refused_claim_renewal_ends_the_turn_and_sends_nothing_more(autojump_clock: MockClock) -> None:
    rig = Rig(server=SlowHistory(), replayed=concludes({"type": "start_timer"}))
    rig.server.lie("poll", lambda body: body["task"].update(next_history_page_token="p1"))
    rig.server.lie("claim_heartbeat", refusing(409, "lease_owner_mismatch"))

    await rig.run_for(20)

    assert rig.server.operations(*CLOSING) == []
    assert turns(rig) == [("abandoned", "lease_owner_mismatch")]


async def test_overload_does_not_end_a_claim(autojump_clock: MockClock) -> None:
    rig = Rig(server=SlowHistory(), replayed=concludes({"type": "start_timer"}))
    rig.server.lie("poll", lambda body: body["task"].update(next_history_page_token="p1"))
    rig.server.lie("claim_heartbeat", refusing(503, "backend_unavailable"))

    await rig.run_for(20)

    assert turns(rig) == [("completed", "start_timer")]


async def test_control_renews_the_claim_while_an_attempt_runs(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=20))

    await rig.run_to_close()

    assert rig.server.operations("claim_heartbeat") == []


# -- cancellation without a running attempt --------------------------------------------------------


class Cancelled(ScriptedServer):
    """Its run was cancelled before a worker came."""

    def start_run(self, *arguments: Any) -> None:
        super().start_run(*arguments)
        self.request_cancellation()


async def test_a_call_that_is_not_started_yet_is_the_boundary_of_a_cancellation(autojump_clock: MockClock) -> None:
    rig = Rig(server=Cancelled())

    await rig.run_to_close()

    assert rig.server.operations("prepare", "acknowledge") == []
    assert rig.server.bodies("deliver")[0]["sequence"] == 1
    assert rig.server.closed == "cancelled"


async def test_what_was_authored_before_the_boundary_is_completed_first(autojump_clock: MockClock) -> None:
    @workflow.defn(name="wf")
    class EffectThenCall:
        async def run(self, ctx: Any) -> Any:
            await ctx.side_effect(lambda: 1)
            return await ctx.local_activity("act", [], start_to_close_timeout=30)

    rig = Rig(server=Cancelled(), workflow_class=EffectThenCall)

    await rig.run_for(2)

    assert [command["type"] for command in rig.server.bodies("complete")[0]["commands"]] == ["record_side_effect"]
    assert rig.server.operations("checkpoint", "prepare", "deliver") == []


async def test_a_delivery_that_waits_for_the_receipt_ends_the_turn(autojump_clock: MockClock) -> None:
    rig = Rig(
        hangs(), workflow_class=one_call(cancellation_policy=workflow.CancellationPolicy.WAIT_CANCELLATION_COMPLETED)
    )
    rig.server.start_run()
    nothing = dict.fromkeys(("sequence", "call_kind", "sequence_span", "request_id", "operation_sequence_span"))
    rig.server.lie(
        "deliver",
        lambda body: body.update(
            delivered=False, reason="cancellation_waiting_for_activity", claim_released=True, **nothing
        ),
    )
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        await trio.sleep(5)

    assert rig.server.operations(*CLOSING) == []
    assert turns(rig) == [("released", "cancellation_waiting_for_activity")]


async def test_a_call_after_the_cancellation_is_not_started(autojump_clock: MockClock) -> None:
    @workflow.defn(name="wf")
    class Stubborn:
        async def run(self, ctx: Any) -> Any:
            try:
                return await ctx.local_activity("act", [], start_to_close_timeout=30)
            except workflow.WorkflowCancelled:
                return await ctx.local_activity("act", [], start_to_close_timeout=30)

    rig = Rig(server=Cancelled(), workflow_class=Stubborn)

    await rig.run_for(2)

    assert rig.children.jobs == []
    assert rig.server.operations("prepare", *CLOSING) == []
    assert turns(rig) == [("abandoned", "call_after_cancellation")]
