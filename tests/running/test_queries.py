"""Queries of a worker on a mocked clock: answered, failed, or dropped at the end of their budget; never its end."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.codec import decode_value, envelope
from proctor.running.asking import in_a_thread
from running.lies import set_to, without
from running.rigs import Rig
from running.scripted_server import Refusal, ScriptedServer, Silence


@workflow.defn(name="wf")
class Counting:
    """Waits for ever, and tells what it is asked."""

    def __init__(self) -> None:
        self.total = 0

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        self.total += amount

    @workflow.query("total")
    def told(self, times: int = 1) -> Any:
        return {"total": self.total * times}

    @workflow.query("later")
    async def later(self) -> int:
        return self.total

    @workflow.query("raw")
    def raw(self) -> Any:
        return [b"\xff", 1.5]

    @workflow.query("broken")
    def broken(self) -> None:
        raise ValueError("cannot tell")

    @workflow.query("exits")
    def exits(self) -> None:
        raise SystemExit(3)

    @workflow.query("unsendable")
    def unsendable(self) -> Any:
        return object()

    @workflow.query("huge")
    def huge(self) -> str:
        return "x" * 3_000_000

    async def run(self, ctx: Any) -> None:
        await ctx.wait_condition(lambda: False)


def rig(*, authority: bool = True, **options: Any) -> Rig:
    server = ScriptedServer()
    server.capabilities |= {"query_tasks": True, "query_task_authority": authority}
    made = Rig(workflow_class=Counting, server=server, **options)
    server.start_run()
    server.task_ready = False
    server._record("SignalReceived", {"signal_name": "add", "arguments": envelope([5])})
    return made


async def reply(made: Rig, name: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    with trio.fail_after(60):
        async with made.serving():
            return await made.server.reply_to(made.server.ask(name, *arguments, **options))
    raise AssertionError("unreachable")


async def settled(made: Rig) -> dict[str, Any]:
    """Serve until the worker says what became of a query."""
    async with made.serving():
        while not (found := [event for event in made.events if event["event"] == "query_task"]):  # noqa: ASYNC110
            await trio.sleep(0.1)
    return found[0]


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_the_state_that_history_leads_to_is_told_in_both_forms(profile: str, autojump_clock: MockClock) -> None:
    made = rig(profile=profile)

    told = await reply(made, "total", 2)

    assert told["outcome"] == "completed"
    assert told["result"] == decode_value(told["result_envelope"], None) == {"total": 10}
    assert (told["lease_owner"], told["query_task_attempt"]) == ("w", 1)
    looks = made.server.operations("query_status", "query_complete")
    assert looks == (["query_status", "query_complete"] if profile == "supervised" else ["query_complete"])
    assert "query_tasks" in made.server.bodies("register")[0]["capabilities"]


async def test_an_answer_that_json_cannot_hold_goes_as_a_payload_only(autojump_clock: MockClock) -> None:
    told = await reply(rig(), "raw")

    assert told["result"] is None
    assert decode_value(told["result_envelope"], None) == [b"\xff", 1.5]


async def test_an_async_query_handler_is_run_to_its_end(autojump_clock: MockClock) -> None:
    assert (await reply(rig(), "later"))["result"] == 5


@pytest.mark.parametrize(
    ("name", "reason", "text"),
    [
        ("nothing", "rejected_unknown_query", "has no query 'nothing'"),
        ("broken", "query_rejected", "cannot tell"),
        ("exits", "query_workflow_state_unavailable", "SystemExit"),
        ("unsendable", "query_result_encode_failed", "cannot be sent"),
        ("huge", "query_result_encode_failed", "more than the 2097152"),
    ],
)
async def test_a_query_without_an_answer_fails_with_its_reason(
    name: str, reason: str, text: str, autojump_clock: MockClock
) -> None:
    told = await reply(rig(), name)

    assert told["outcome"] == "failed"
    assert told["failure"]["reason"] == reason
    assert text in told["failure"]["message"]


async def test_a_history_that_the_code_does_not_lead_to_makes_the_state_unavailable(autojump_clock: MockClock) -> None:
    made = rig()
    made.server._record("TimerScheduled", {"sequence": 1, "timer_id": "T", "delay_seconds": 5})
    made.server._record("TimerFired", {"sequence": 1, "timer_id": "T"})

    told = await reply(made, "total")

    assert told["failure"]["reason"] == "query_workflow_state_unavailable"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_arguments": {"codec": "json", "blob": "W10="}}, "query_payload_decode_failed"),
        ({"query_arguments": {"codec": "avro", "blob": "???"}}, "query_payload_decode_failed"),
        ({"payload_codec": "json"}, "query_workflow_state_unavailable"),
        ({"workflow_type": "other"}, "query_workflow_type_not_registered"),
        ({"history_events": [{"event_type": 7}]}, "query_workflow_state_unavailable"),
        ({"history_events": []}, "query_workflow_state_unavailable"),
    ],
)
async def test_a_task_that_cannot_be_read_fails_and_the_next_one_is_answered(
    change: dict[str, Any], reason: str, autojump_clock: MockClock
) -> None:
    made = rig()
    made.server.lie("query_poll", lambda body: body["task"].update(change))

    with trio.fail_after(100):
        async with made.serving():
            first = await made.server.reply_to(made.server.ask("total"))
            second = await made.server.reply_to(made.server.ask("total"))

    if change != {"history_events": []}:  # nothing is recorded yet, and there is a state all the same
        assert first["failure"]["reason"] == reason
    assert second["result"] == {"total": 5}


_LYING_TASKS: list[Callable[[dict[str, Any]], Any]] = [
    set_to("lease_owner", "other"),
    set_to("task_queue", "other"),
    set_to("query_task_attempt", 0),
    set_to("query_task_attempt", True),
    set_to("query_task_id", ""),
    set_to("query_name", None),
    set_to("history_events", {}),
    set_to("lease_expires_at", "soon"),
    set_to("lease_expires_at", "2026-10-02T00:00:30Z"),
    set_to("query_deadline_at", "2026-10-01T00:00:00.000000Z"),
    set_to("lease_expires_at", "2026-10-02T00:01:30.000000Z"),
    without("query_admitted_at"),
    without("server_time"),
]


@pytest.mark.parametrize("lie", _LYING_TASKS)
async def test_a_claim_that_lies_is_not_worked_on_and_the_worker_goes_on(
    lie: Callable[[dict[str, Any]], Any], autojump_clock: MockClock
) -> None:
    made = rig()
    made.server.lie("query_poll", lambda body: lie(body["task"]))

    with trio.fail_after(100):
        async with made.serving():
            lied_about = made.server.ask("total")
            while made.server.asked:  # noqa: ASYNC110 - nothing else tells that it was taken
                await trio.sleep(0.1)
            assert (await made.server.reply_to(made.server.ask("total")))["outcome"] == "completed"

    assert lied_about not in made.server.replies


_LYING_LOOKS: list[Callable[[dict[str, Any]], Any]] = [
    set_to("query_task_id", "other"),
    set_to("query_task_attempt", 2),
    set_to("lease_owner", "other"),
    set_to("query_deadline_at", "2026-10-02T00:09:00.000000Z"),
    set_to("lease_expires_at", "2026-10-02T00:09:00.000000Z"),
    set_to("can_continue", False),
    set_to("query_task_status", "pending"),
    set_to("reason", "why not"),
    without("reason"),
    without("server_time"),
    set_to("server_time", "2026-10-02T00:00:00Z"),
    set_to("server_time", "2026-10-02T09:00:00.000000Z"),  # long over, it says
]


def _refused(status: int, reason: str) -> Callable[[dict[str, Any]], Any]:
    def lie(body: dict[str, Any]) -> None:
        raise Refusal(status, {"reason": reason})

    return lie


def _silent(body: dict[str, Any]) -> None:
    raise Silence


@pytest.mark.parametrize(
    "lie", [*_LYING_LOOKS, _refused(409, "query_task_timed_out"), _refused(404, "query_task_not_found"), _silent]
)
async def test_without_a_confirmed_claim_nothing_is_computed_or_published(
    lie: Callable[[dict[str, Any]], Any], autojump_clock: MockClock
) -> None:
    computed: list[int] = []

    async def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        computed.append(1)
        return work()

    made = rig(apart=apart)
    made.server.lie("query_status", lie)
    made.server.ask("total")

    event = await settled(made)

    assert event["outcome"] == "abandoned"
    assert computed == []
    assert made.server.operations("query_complete", "query_fail") == []


@pytest.mark.parametrize("authority", [True, False])
async def test_an_answer_that_comes_after_the_budget_is_not_published(
    authority: bool, autojump_clock: MockClock
) -> None:
    async def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        await trio.sleep(31)
        return work()

    made = rig(authority=authority, apart=apart)
    made.server.ask("total")

    event = await settled(made)

    assert (event["outcome"], event["reason"]) == ("abandoned", "query_execution_budget_expired")
    assert made.server.operations("query_complete", "query_fail") == []
    assert trio.current_time() - made.server.times("query_poll")[0] < 31


async def test_a_query_that_never_ends_is_left_alone_in_its_thread() -> None:
    ending, begun = threading.Event(), threading.Event()

    def never() -> dict[str, Any]:
        begun.set()
        ending.wait()
        return {}

    apart = in_a_thread(trio.CapacityLimiter(1))
    try:
        with trio.move_on_after(0.2) as budget:
            await apart(never)
        assert budget.cancelled_caught
        assert begun.is_set()
        with trio.move_on_after(0.1) as waited:  # its place is taken as long as it goes on
            await apart(dict)
        assert waited.cancelled_caught
    finally:
        ending.set()
    with trio.fail_after(5):
        assert await apart(lambda: {"free": "again"}) == {"free": "again"}


async def test_a_slow_query_holds_up_neither_another_one_nor_the_workflow_tasks(autojump_clock: MockClock) -> None:
    slow = trio.Event()

    async def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if not slow.is_set():
            slow.set()
            await trio.sleep(20)
        return work()

    made = rig(apart=apart)
    async with made.serving():
        first = made.server.ask("total")
        await slow.wait()
        with trio.fail_after(5):
            await made.server.reply_to(made.server.ask("total"))
            made.server.make_ready()
            while not made.server.operations("complete"):  # noqa: ASYNC110 - nothing else tells
                await trio.sleep(0.1)
        assert (await made.server.reply_to(first))["outcome"] == "completed"


@pytest.mark.parametrize(
    ("lie", "outcome"),
    [
        (_refused(409, "query_task_timed_out"), "abandoned"),
        (_refused(409, "query_task_attempt_mismatch"), "abandoned"),
        (_refused(503, "backend_unavailable"), "abandoned"),
        (_silent, "abandoned"),
        (_refused(422, "validation_failed"), "failed"),
    ],
)
async def test_a_refused_answer_becomes_a_failure_only_when_somebody_still_waits(
    lie: Callable[[dict[str, Any]], Any], outcome: str, autojump_clock: MockClock
) -> None:
    made = rig()

    def refuse(body: dict[str, Any]) -> Any:
        made.server.replies.clear()
        return lie(body)

    made.server.lie("query_complete", refuse)
    made.server.ask("total")

    event = await settled(made)

    assert event["outcome"] == outcome
    assert len(made.server.operations("query_fail")) == (outcome == "failed")


async def test_a_server_without_query_tasks_is_not_asked_for_any(autojump_clock: MockClock) -> None:
    made = Rig(workflow_class=Counting)

    await made.idle_for(40)

    assert made.server.operations("query_poll") == []
    (body,) = made.server.bodies("register")
    assert "query_tasks" not in body["capabilities"]


async def test_a_drain_ends_the_query_polls(autojump_clock: MockClock) -> None:
    made = rig()

    async def drain() -> None:
        await trio.sleep(1)
        made.service.drain()

    act: Callable[[], Awaitable[None]] = drain
    with trio.fail_after(5):
        await made.run_beside(act)

    assert made.server.operations()[-1] == "deregister"
