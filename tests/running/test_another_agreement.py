"""A server that comes back with another worker protocol: what the old agreement began is dropped, then all is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor.core.attempt import StopCause
from proctor.errors import NegotiationRefused, ServerUnreachable
from proctor.transport.calls import Answer, Call, Transport
from running.rigs import Rig
from running.scripted_children import hangs, returns
from running.scripted_server import Refusal, ScriptedServer, _operation

PUBLISHING = ("outcome", "complete", "fail", "acknowledge")


class VersionedServer(ScriptedServer):
    """Speaks one worker protocol, until it ends and comes back with another; notes what each call announced."""

    def __init__(self, speaks: str) -> None:
        super().__init__()
        self.speaks = speaks
        self.ended = trio.Event()
        self.announced: list[tuple[str, str]] = []

    def speaking(self, protocol: str) -> Transport:
        return Announcing(self, protocol)

    def come_back(self, speaks: str) -> None:
        self.speaks = speaks
        self.ended.set()
        self.ended = trio.Event()

    def versions(self, operation: str) -> list[str]:
        return [protocol for name, protocol in self.announced if name == operation]

    async def _do_discovery(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, answer = await super()._do_discovery(body)
        answer["worker_protocol"]["version"] = self.speaks
        return status, answer

    async def _do_register(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.epoch and self.closed is None:
            self.make_ready()  # what the earlier registration held is free
        return await super()._do_register(body)


@dataclass
class Announcing:
    server: VersionedServer
    protocol: str

    async def send(self, call: Call, *, within: float) -> Answer:
        self.server.announced.append((_operation(call), self.protocol))
        if int(self.protocol[2:]) > int(self.server.speaks[2:]) and call.plane == "worker":
            began = trio.current_time()
            await trio.sleep(0.01)
            return Answer(400, {"reason": "unsupported_protocol_version"}, began, trio.current_time())
        answer: Answer | None = None
        ended = self.server.ended
        async with trio.open_nursery() as nursery:

            async def break_off() -> None:
                await ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(break_off)
            answer = await self.server.send(call, within=within)
            nursery.cancel_scope.cancel()
        if answer is None:
            raise ServerUnreachable("the server ended")
        return answer


@pytest.mark.parametrize("slots", [1, 2], ids=["found out by what runs", "found out by a parked poll"])
async def test_an_ordinary_worker_drops_what_it_ran_and_speaks_the_older_version(
    autojump_clock: MockClock, slots: int
) -> None:
    server = VersionedServer("1.19")
    rig = Rig(hangs(), returns("x"), server=server, slots=slots, profile="ordinary", speaking=server.speaking)
    server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(1)
        server.come_back("1.18")
        with trio.fail_after(20):
            await server.run_closed.wait()
        await trio.sleep(2)

    assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "unsupported_protocol_version")
    assert server.versions("register") == ["1.19", "1.18"]
    assert server.versions("complete") == ["1.18"]
    assert server.versions("deregister") == ["1.18"]


async def test_a_newer_version_is_spoken_by_the_next_registration_only(autojump_clock: MockClock) -> None:
    server = VersionedServer("1.18")
    rig = Rig(returns("x", after=5), server=server, profile="ordinary", speaking=server.speaking)
    server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        server.come_back("1.19")
        with trio.fail_after(20):
            await server.run_closed.wait()
        await trio.sleep(15)
        server.registered = False
        await trio.sleep(15)

    assert len(rig.children.jobs) == 1
    assert server.versions("complete") == ["1.18"]
    assert server.versions("register") == ["1.18", "1.19"]


@pytest.mark.parametrize("slots", [1, 2], ids=["found out by what runs", "found out by a parked poll"])
async def test_a_supervised_worker_ends_with_its_child_stopped_and_nothing_said(
    autojump_clock: MockClock, slots: int
) -> None:
    server = VersionedServer("1.20")
    rig = Rig(hangs(), server=server, slots=slots, speaking=server.speaking)
    server.start_run()

    async def come_back() -> None:
        await rig.children.started.wait()
        await trio.sleep(1)
        server.come_back("1.19")

    with trio.fail_after(10), pytest.raises(BaseExceptionGroup) as ended:
        await rig.run_beside(come_back)

    assert ended.group_contains(NegotiationRefused, match="version >= 1.20.*advertises worker protocol 1.19")
    assert rig.children.running == 0
    assert rig.attempt()["published"] is False
    assert server.versions("register") == ["1.20"]
    assert server.operations(*PUBLISHING) == []


async def test_a_renewed_registration_that_fails_is_tried_again(autojump_clock: MockClock) -> None:
    def refuse(body: dict[str, Any]) -> None:
        raise Refusal(503, {"reason": "backend_unavailable"})

    server = VersionedServer("1.19")
    server.lie("register", lambda body: None, refuse, refuse)
    rig = Rig(server=server, profile="ordinary", speaking=server.speaking)
    async with rig.serving():
        await trio.sleep(1)
        server.come_back("1.18")
        await trio.sleep(40)

    assert server.versions("register") == ["1.19", "1.18", "1.18", "1.18"]


async def test_queries_are_asked_for_once_the_server_hands_them_out(autojump_clock: MockClock) -> None:
    server = VersionedServer("1.19")
    rig = Rig(server=server, profile="ordinary", speaking=server.speaking)
    async with rig.serving():
        await trio.sleep(15)
        assert server.versions("query_poll") == []
        server.capabilities["query_tasks"] = True
        server.registered = False
        await trio.sleep(15)

    assert "query_tasks" in server.bodies("register")[-1]["capabilities"]
    assert set(server.versions("query_poll")) == {"1.19"}
