"""Waiting for the end of a run: news where the server waits for it, polling where it does not."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from proctor import Client
from proctor.core.codec import envelope
from proctor.errors import ServerUnreachable, WorkflowFailed
from proctor.transport.calls import Answer, Call

Handler = Callable[[int], list[dict[str, Any]]]
DONE = {"event_type": "WorkflowCompleted", "payload": {"output": envelope("done"), "payload_codec": "avro"}}


class Server:
    """A server of runs with a history that grows at given instants, and one way to answer who waits for it."""

    def __init__(self, *growth: tuple[float, dict[str, Any]], waits: bool = True, refuses: int | None = None) -> None:
        self.growth = [(0.0, {"event_type": "WorkflowStarted", "payload": {}}), *growth]
        self.waits = waits
        self.refuses = refuses
        self.deaf = False
        self.away_until = 0.0
        self.parked = 0
        self.most_parked = 0
        self.asked: list[tuple[str, float]] = []

    def events(self) -> list[dict[str, Any]]:
        now = trio.current_time()
        return [{"sequence": number, **event} for number, (at, event) in enumerate(self.growth, start=1) if at <= now]

    async def send(self, call: Call, *, within: float) -> Answer:
        await trio.lowlevel.checkpoint()
        kind = "history" if "/history" in call.path else "describe"
        self.asked.append((kind, trio.current_time()))
        if trio.current_time() < self.away_until:
            raise ServerUnreachable("nobody is there")
        if kind == "describe":
            closed = any(event["event_type"] == "WorkflowCompleted" for event in self.events())
            return Answer(200, {"run_id": "R", "status": "completed" if closed else "running"})
        if self.refuses is not None and "wait_new_event" in call.query:
            return Answer(self.refuses, {"reason": "validation_failed", "message": "no such field"})
        token = call.query.get("next_page_token")
        after = int(base64.b64decode(token)) if token and not self.deaf else 0
        self.parked += 1
        self.most_parked = max(self.most_parked, self.parked)
        with trio.move_on_after(30):
            while self.waits and "wait_new_event" in call.query and len(self.events()) <= after:
                later = [at for at, _ in self.growth if at > trio.current_time()]
                await trio.sleep_until(min(later, default=float("inf")))
        self.parked -= 1
        return Answer(200, {"events": self.events()[after:], "next_page_token": None})

    def count(self, kind: str) -> int:
        return sum(asked == kind for asked, _ in self.asked)


def connected(server: Server) -> Client:
    client = Client("http://127.0.0.1:9")
    client._transport = server
    return client


async def test_the_end_is_heard_of_at_once_and_nothing_is_polled(autojump_clock: trio.testing.MockClock) -> None:
    server = Server((7.0, {"event_type": "SideEffectRecorded", "payload": {}}), (100.0, DONE))

    result = await connected(server).handle("wf", "R").result()

    assert (result, trio.current_time()) == ("done", 100.0)
    assert server.count("describe") == 3  # after each half minute without news
    assert server.count("history") < 8


async def test_a_server_that_does_not_wait_is_polled(autojump_clock: trio.testing.MockClock) -> None:
    server = Server((10.2, DONE), waits=False)

    result = await connected(server).handle("wf").result()

    assert result == "done"
    assert 10.2 <= trio.current_time() <= 10.8
    assert 20 <= server.count("describe") <= 24


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_to_wait_is_polled(autojump_clock: trio.testing.MockClock, status: int) -> None:
    server = Server((10.2, DONE), refuses=status)

    assert await connected(server).handle("wf", "R").result() == "done"
    assert trio.current_time() <= 10.8
    assert server.count("history") == 2


async def test_a_server_that_gives_the_same_again_is_polled(autojump_clock: trio.testing.MockClock) -> None:
    server = Server((10.2, DONE))
    server.deaf = True

    assert await connected(server).handle("wf", "R").result() == "done"
    assert trio.current_time() <= 10.8
    assert server.count("history") == 3


async def test_a_busy_run_is_not_asked_about_event_by_event(autojump_clock: trio.testing.MockClock) -> None:
    busy = [(number / 1000, {"event_type": "SideEffectRecorded", "payload": {}}) for number in range(1, 2000)]
    server = Server(*busy, (3.0, DONE))

    assert await connected(server).handle("wf", "R").result() == "done"
    assert server.count("history") <= 2 / 0.05 + 4


async def test_only_some_calls_of_a_client_wait_and_the_others_poll(autojump_clock: trio.testing.MockClock) -> None:
    server = Server((20.0, DONE))
    client = connected(server)
    results: list[Any] = []

    async def wait() -> None:
        results.append(await client.handle("wf", "R").result())

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(wait)

    assert results == ["done"] * 50
    assert server.most_parked == 32
    assert trio.current_time() <= 20.6


async def test_a_server_that_is_away_for_a_while_ends_no_wait_and_one_that_stays_away_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = Server((40.0, DONE))
    server.away_until = 20.0
    assert await connected(server).handle("wf", "R").result() == "done"
    server.away_until = 1000.0
    began = trio.current_time()
    with pytest.raises(ServerUnreachable):
        await connected(server).handle("wf", "R").result()
    assert 30 <= trio.current_time() - began <= 31


async def test_a_chain_is_followed_and_a_failure_told(autojump_clock: trio.testing.MockClock) -> None:
    moved = {"event_type": "WorkflowContinuedAsNew", "payload": {"continued_to_run_id": "R2"}}
    failed = {"event_type": "WorkflowFailed", "payload": {"message": "no luck"}}
    first, second = Server((1.0, moved)), Server((5.0, failed))

    class Chain(Server):
        async def send(self, call: Call, *, within: float) -> Answer:
            self.asked.append((call.path, trio.current_time()))
            return await (second if "/runs/R2/" in call.path else first).send(call, within=within)

    with pytest.raises(WorkflowFailed, match="no luck") as caught:
        await connected(Chain()).handle("wf").result()
    assert caught.value.status == "failed"
    assert trio.current_time() == 5.0
