"""The fault proxy alone: what passes passes untouched, each fault does what it says, and all of it is recorded."""

from __future__ import annotations

import h11
import pytest
import trio
from httpx2 import RemoteProtocolError, TransportError

from harness.plain import plain
from proctor.errors import UsageError
from proctor.harness import (
    Cut,
    Delay,
    DropRequest,
    DropResponse,
    Duplicate,
    Fault,
    Hold,
    Refuse,
    Rewrite,
    open_fault_proxy,
)
from proctor.harness.peers import Message
from proctor.harness.proxy import _rewritten


async def test_without_rules_everything_passes_over_one_connection_and_is_recorded() -> None:
    async with plain() as (server, proxy, client):
        for number in (1, 2, 3):
            answer = await client.post("/api/anything?x=1", json={"n": number}, headers={"Authorization": "Bearer s3"})
            assert answer.status_code == 200
            assert answer.json()["number"] == number

        assert [(method, path) for method, path, _ in server.seen] == [("POST", "/api/anything?x=1")] * 3
        assert server.connections == 1
        assert server.headers[0][b"authorization"] == b"Bearer s3"
        assert server.headers[0][b"host"].decode() == server.url.removeprefix("http://")
        assert [(seen.fault, seen.sent, seen.status, seen.given, seen.notes) for seen in proxy.exchanges] == [
            (None, 1, 200, 200, [])
        ] * 3
        assert "s3" not in str([seen.as_json() for seen in proxy.exchanges])


async def test_bodies_of_any_size_and_answers_without_a_body_pass() -> None:
    async with plain(answer={"large": "y" * 3_000_000}) as (server, _, client):
        answer = await client.post("/", content=b"z" * 3_000_000)
        head = await client.head("/")

        assert len(answer.json()["large"]) == 3_000_000
        assert len(server.seen[0][2]) == 3_000_000
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.get("/")).status_code == 200


async def test_a_request_in_chunks_that_waits_to_be_asked_for_its_body_passes() -> None:
    async with plain() as (server, proxy, _):
        host, port = proxy.url.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            head = b"POST /c HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
            await stream.send_all(head)
            assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 100")
            await stream.send_all(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET /next HTTP/1.1\r\nhost: x\r\n\r\n")
            await server.until("seen", 2)

        assert [(path, body) for _, path, body in server.seen] == [("/c", b"abcde"), ("/next", b"")]


async def test_a_server_that_ends_connections_is_followed() -> None:
    async with plain(close=True) as (server, proxy, client):
        for _ in range(2):
            assert (await client.get("/")).headers["connection"] == "close"

        assert server.connections == 2
        assert [seen.notes for seen in proxy.exchanges] == [[], []]


async def test_a_client_that_leaves_is_followed_so_that_the_server_sees_it() -> None:
    async with plain(patience=trio.Event()) as (server, proxy, client):
        with trio.move_on_after(5) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.get, "/poll")
                await server.until("seen")
                scope.cancel()
        await server.until("left")
        await proxy.wait_for(lambda seen: seen.ended is not None)

        assert proxy.exchanges[0].notes == ["the client left"]
        assert (proxy.exchanges[0].status, proxy.exchanges[0].given) == (None, None)


async def test_a_server_that_is_not_there_is_recorded_as_such() -> None:
    async with plain() as (server, _, _):
        dead = server.url
    async with open_fault_proxy(dead) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await stream.receive_some(10) == b""

        assert proxy.exchanges[0].fault is None
        assert "the server: no connection to 127.0.0.1" in proxy.exchanges[0].notes[0]


BROKEN: dict[str, tuple[Fault, int, int]] = {
    # name: fault, whole requests that the server sees, broken ones
    "request lost": (DropRequest(), 0, 0),
    "answer lost": (DropResponse(), 1, 0),
    "request cut": (Cut("request"), 0, 1),
    "answer cut": (Cut("answer"), 1, 0),
    "answer cut at its head": (Cut("answer", 0.0), 1, 0),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_exchange_reaches_the_server_as_far_as_it_should_and_the_client_not(name: str) -> None:
    fault, whole, broken = BROKEN[name]
    async with plain() as (server, proxy, client):
        rule = proxy.add(fault, method="POST")
        await client.get("/")
        with pytest.raises(TransportError):
            await client.post("/", json={"a": "b" * 100})
        if broken:
            await server.until("broken")

        assert rule.used_up
        assert (len(server.seen) - 1, server.broken) == (whole, broken)
        record = await rule.acted()
        assert (record.fault, record.sent, record.status, record.given) == (
            str(fault),
            whole,
            200 if whole else None,
            None,
        )
        assert (await client.post("/")).status_code == 200, "the next exchange passes"


async def test_a_bodiless_request_is_cut_too() -> None:
    async with plain() as (server, proxy, client):
        proxy.add(Cut("request"))
        with pytest.raises(RemoteProtocolError):
            await client.get("/")
        await server.until("broken")

        assert server.seen == []


async def test_a_duplicate_is_answered_with_the_last_answer() -> None:
    async with plain() as (server, proxy, client):
        proxy.add(Duplicate(3))

        assert (await client.post("/", json={})).json()["number"] == 3
        assert len(server.seen) == 3
        assert proxy.exchanges[0].sent == 3


async def test_a_delayed_request_arrives_although_its_client_gave_up(mock_clock: trio.testing.MockClock) -> None:
    async with plain() as (server, proxy, client):
        rule = proxy.add(Delay(5.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.get, "/late")
            await rule.acted()
            nursery.cancel_scope.cancel()
        await proxy.wait_for(lambda seen: seen.notes == ["the client left"])
        assert server.seen == []
        mock_clock.jump(5.1)
        await server.until("seen")
        await proxy.wait_for(lambda seen: seen.ended is not None)

        assert proxy.exchanges[0].given is None


async def test_what_is_held_goes_on_when_it_is_released() -> None:
    async with plain() as (server, proxy, client):
        request, answer = proxy.add(Hold("request"), path="/a"), proxy.add(Hold("answer"), path="/b")
        got: list[str] = []

        async def get(path: str) -> None:
            await client.get(path)
            got.append(path)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get, "/a")
            nursery.start_soon(get, "/b")
            await request.acted()
            await answer.committed()
            assert [path for _, path, _ in server.seen] == ["/b"]
            assert got == []
            request.release()
            await server.until("seen", 2)
            answer.release()

        assert sorted(got) == ["/a", "/b"]


async def test_an_answer_is_rewritten() -> None:
    async with plain() as (_, proxy, client):
        proxy.add(Rewrite(lambda body: {**body, "number": -1}))

        assert (await client.get("/")).json()["number"] == -1
        assert (await client.get("/")).json()["number"] == 2


async def test_an_answer_that_is_bytes_is_rewritten_as_bytes() -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"3")]
    answer = Message(h11.Response(status_code=200, headers=headers), b"abc")

    changed = _rewritten(answer, lambda content: content[::-1] + b"!")

    assert changed.body == b"cba!"
    assert changed.header(b"content-length") == "4"


async def test_a_rule_counts_what_it_matches_and_acts_from_the_nth_on() -> None:
    async with plain() as (server, proxy, client):
        rule = proxy.add(Refuse(), "control", worker="w2", nth=2, times=2)
        path = "/api/worker/workflow-tasks/T/local-activities/A/control"
        told = [
            (await client.post(path, json={"lease_owner": worker})).status_code
            for worker in ("w2", "w1", "w2", "w2", "w2", "w1")
        ]
        other = await client.post(path.replace("control", "outcome"), json={"lease_owner": "w2"})

        assert told == [200, 200, 503, 503, 200, 200]
        assert other.status_code == 200
        assert (rule.seen, len(server.seen)) == (4, 5)
        assert [seen.fault for seen in rule.exchanges] == ["refuse backend_unavailable"] * 2


async def test_a_rule_without_end_acts_until_it_is_removed_and_the_first_of_several_acts() -> None:
    async with plain() as (_, proxy, client):
        first = proxy.add(Refuse(), path="/a/*/{c}", times=None)
        second = proxy.add(Refuse("storage_pressure"), path="/a/**")
        assert (await client.get("/a/b/c")).json()["reason"] == "backend_unavailable"
        assert second.seen == 1
        assert (await client.get("/a/b/c")).status_code == 503
        proxy.remove(first)

        assert (await client.get("/a/b/c")).status_code == 200, "the second rule's one exchange was the first"


async def test_a_partition_is_silent_for_one_worker_and_heals() -> None:
    async with plain() as (server, proxy, client):
        async with trio.open_nursery() as nursery:
            with proxy.partition("w1") as partition:

                async def cut_off() -> None:
                    with pytest.raises(TransportError):
                        await client.post("/api/worker/heartbeat", json={"worker_id": "w1"})

                nursery.start_soon(cut_off)
                await proxy.wait_for(lambda seen: seen.fault == "partition")
                assert (await client.post("/api/worker/heartbeat", json={"worker_id": "w2"})).status_code == 200
                assert len(server.seen) == 1
            assert partition.healed.is_set()

        assert (await client.post("/api/worker/heartbeat", json={"worker_id": "w1"})).status_code == 200


async def test_an_answer_that_was_under_way_when_the_partition_began_is_lost_and_a_client_that_leaves_is_not_seen() -> (
    None
):
    patience = trio.Event()
    async with plain(patience=patience) as (server, proxy, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/api/worker/heartbeat", json={"worker_id": "w1"}))
            await server.until("seen")
            partition = proxy.partition("w1")
            nursery.cancel_scope.cancel()
        await proxy.wait_for(lambda seen: seen.notes == ["the client left"])
        assert server.left == 0
        patience.set()
        record = await proxy.wait_for(lambda seen: seen.ended is not None)

        assert (record.fault, record.status, record.given) == ("partition", 200, None)
        partition.heal()


async def test_the_record_is_bounded_and_says_what_it_forgot() -> None:
    async with plain() as (server, _, _), open_fault_proxy(server.url, remember=2) as proxy:
        heard: list[int] = []
        async with open_fault_proxy(proxy.url, on_exchange=lambda seen: heard.append(seen.number)) as outer:
            from httpx2 import AsyncClient

            async with AsyncClient(base_url=outer.url) as client:
                for _ in range(5):
                    await client.get("/")

        assert ([seen.number for seen in proxy.exchanges], proxy.forgotten) == ([4, 5], 3)
        assert heard == [1, 2, 3, 4, 5]


async def test_closing_the_proxy_says_so_in_what_it_cut_off() -> None:
    async with plain(patience=trio.Event()) as (server, _, client), trio.open_nursery() as nursery:
        async with open_fault_proxy(server.url) as proxy:

            async def ask() -> None:
                with pytest.raises(TransportError):
                    await client.get(proxy.url)

            nursery.start_soon(ask)
            await server.until("seen")
        assert proxy.exchanges[0].notes == ["the proxy was closed"]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "http://h?x=1", "nonsense"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        async with open_fault_proxy(url):
            pass


def test_impossible_faults_are_refused() -> None:
    for make in (
        lambda: Delay(-1.0),
        lambda: Duplicate(1),
        lambda: Cut("answer", 1.0),
        lambda: Refuse("gone"),  # type: ignore[arg-type]
        lambda: Refuse(retry_after_seconds=61),
    ):
        with pytest.raises(UsageError):
            make()
