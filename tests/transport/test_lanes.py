"""Calls over HTTP: what is sent, what is tried again, what an answer must be, and how long it may take."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
from trio.testing import MockClock

from proctor.errors import ServerUnreachable, UsageError
from proctor.transport.calls import Call, accepted, refusal, segment
from proctor.transport.lanes import Lanes, open_lanes
from proctor.transport.settings import POLL_MEDIA_TYPE, ServerSettings

SETTINGS = ServerSettings("http://server:1", "ns", token="s3cret-token")
CONTROL = Call("worker", "POST", "/worker/heartbeat", {"worker_id": "w"})
POLL = Call("worker", "POST", "/worker/workflow-tasks/poll", {"poll_request_id": "p"}, poll=True)

Handler = Callable[[httpx2.Request], Any]


class Wire:
    """Answers requests from a list, and remembers them."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.at: list[float] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.at.append(trio.current_time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        status, body = answer
        return httpx2.Response(status, json=body)


@asynccontextmanager
async def lanes(wire: Wire, settings: ServerSettings = SETTINGS) -> AsyncIterator[Lanes]:
    async with (
        httpx2.AsyncClient(transport=httpx2.MockTransport(wire)) as control,
        httpx2.AsyncClient(transport=httpx2.MockTransport(wire)) as polls,
    ):
        yield Lanes(settings, control=control, polls=polls)


async def send(wire: Wire, call: Call = CONTROL, *, within: float = 10, settings: ServerSettings = SETTINGS) -> Any:
    async with lanes(wire, settings) as opened:
        return await opened.send(call, within=within)


# -- what is sent ----------------------------------------------------------------------------------


async def test_calls_over_earlier_lanes_go_on_announcing_what_these_were_made_for() -> None:
    wire = Wire((200, {}))
    async with lanes(wire) as first:
        later = first.speaking("1.18")
        for one in (first, later, first):
            await one.send(CONTROL, within=10)

    announced = [request.headers["X-Durable-Workflow-Protocol-Version"] for request in wire.requests]
    assert announced == ["1.20", "1.18", "1.20"]


async def test_a_worker_call_carries_its_headers_and_only_those_of_its_plane() -> None:
    wire = Wire((200, {"ok": True}))

    answer = await send(wire)

    (request,) = wire.requests
    assert answer.body == {"ok": True}
    assert str(request.url) == "http://server:1/api/worker/heartbeat"
    assert json.loads(request.content) == {"worker_id": "w"}
    assert request.headers["X-Durable-Workflow-Protocol-Version"] == "1.20"
    assert request.headers["X-Namespace"] == "ns"
    assert request.headers["Authorization"] == "Bearer s3cret-token"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Accept"] == "application/json"
    assert "X-Durable-Workflow-Control-Plane-Version" not in request.headers


async def test_a_control_call_carries_the_other_version() -> None:
    wire = Wire((200, {}))

    await send(wire, Call("control", "GET", "/workflows/wf", query={"page_size": "5"}))

    (request,) = wire.requests
    assert str(request.url) == "http://server:1/api/workflows/wf?page_size=5"
    assert request.headers["X-Durable-Workflow-Control-Plane-Version"] == "2"
    assert "X-Durable-Workflow-Protocol-Version" not in request.headers
    assert request.content == b""


async def test_bytes_are_sent_as_they_are_with_the_headers_that_go_with_them() -> None:
    wire = Wire((201, {"ok": True}))
    call = Call(
        "worker", "POST", "/external-payloads/v1", content=b"AAEC", headers={"X-Durable-Workflow-Payload-Size": "4"}
    )

    assert (await send(wire, call)).body == {"ok": True}

    (request,) = wire.requests
    assert request.content == b"AAEC"
    assert request.headers["Content-Type"] == "application/octet-stream"
    assert request.headers["X-Durable-Workflow-Payload-Size"] == "4"
    assert request.headers["Authorization"] == "Bearer s3cret-token"


async def test_a_success_that_is_bytes_is_given_as_bytes_and_a_refusal_as_json() -> None:
    call = Call("worker", "GET", "/external-payloads/v1/ep_x", most_bytes=5)
    wire = Wire(httpx2.Response(200, content=b"{not json", headers={"X-Thing": "1"}), (404, {"reason": "gone"}))

    got, refused = await send(wire, call), await send(wire, call)

    assert (got.body, got.headers["x-thing"], got.refers) == (b"{not ", "1", False)
    assert (refused.status, refused.reason) == (404, "gone")
    assert wire.requests[0].headers["Accept"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("body", "refers"),
    [
        ({"result": {"external_payload": {}}}, True),
        ({"external_payload_storage": 1}, False),
        ({"a": "external_payload"}, True),
    ],
)
async def test_an_answer_says_whether_it_may_hold_references(body: Any, refers: bool) -> None:
    assert (await send(Wire((200, body)))).refers is refers


async def test_a_poll_offers_the_negotiated_poll_transport() -> None:
    wire = Wire((200, {"task": None}))

    await send(wire, POLL)

    assert wire.requests[0].headers["Accept"] == f"{POLL_MEDIA_TYPE}, application/json;q=0.9"


def test_ids_in_paths_keep_their_harmless_characters_only() -> None:
    assert segment("wf.a_b:c-d") == "wf.a_b:c-d"
    assert segment("../x y/ü?") == "..%2Fx%20y%2F%C3%BC%3F"


@pytest.mark.parametrize("value", ["\udc80", float, object()])
async def test_a_body_without_a_json_form_is_our_own_mistake(value: object) -> None:
    wire = Wire((200, {}))

    with pytest.raises(UsageError, match="POST /x has no JSON form"):
        await send(wire, Call("worker", "POST", "/x", {"value": value}))

    assert wire.requests == []


# -- what is tried again ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        httpx2.ConnectError("refused"),
        httpx2.ReadError("reset"),
        httpx2.RemoteProtocolError("closed"),
        httpx2.ReadTimeout("slow"),
        (500, {"reason": "x"}),
        (502, None),
        (429, {"reason": "busy"}),
    ],
)
async def test_passing_trouble_is_tried_again_with_the_identical_request(
    autojump_clock: MockClock, trouble: Any
) -> None:
    wire = Wire(trouble, trouble, (200, {"ok": True}))

    answer = await send(wire)

    assert answer.status == 200
    assert len({request.content for request in wire.requests}) == 1
    assert len(wire.requests) == 3
    assert 0.07 <= wire.at[1] - wire.at[0] <= 0.13
    assert 0.15 <= wire.at[2] - wire.at[1] <= 0.25


async def test_an_answer_after_retries_is_charged_from_the_first_try(autojump_clock: MockClock) -> None:
    wire = Wire(httpx2.ConnectError("refused"), (200, {}))

    answer = await send(wire)

    assert answer.started == wire.at[0]
    assert answer.received >= wire.at[1]


async def test_three_failures_are_enough(autojump_clock: MockClock) -> None:
    wire = Wire(httpx2.ConnectError("all connection attempts failed"))

    with pytest.raises(ServerUnreachable, match="http://server:1 to POST /worker/heartbeat: all connection") as caught:
        await send(wire)

    assert len(wire.requests) == 3
    assert "Check that the server runs" in str(caught.value)


async def test_three_server_errors_are_an_answer(autojump_clock: MockClock) -> None:
    wire = Wire((500, {"reason": "broken"}))

    answer = await send(wire)

    assert (answer.status, answer.reason) == (500, "broken")
    assert len(wire.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 422])
async def test_a_refusal_is_final(status: int) -> None:
    wire = Wire((status, {"reason": "no"}))

    answer = await send(wire)

    assert answer.status == status
    assert len(wire.requests) == 1


@pytest.mark.parametrize("trouble", [httpx2.ConnectError("refused"), (503, {"retry_after_seconds": 1})])
async def test_a_single_call_is_never_sent_twice(autojump_clock: MockClock, trouble: Any) -> None:
    wire = Wire(trouble, (200, {}))

    with trio.move_on_after(5), contextlib.suppress(ServerUnreachable):
        await send(wire, Call("worker", "POST", "/x", {}, single=True))

    assert len(wire.requests) == 1


async def test_the_body_says_how_long_to_wait_never_the_header(autojump_clock: MockClock) -> None:
    limited = httpx2.Response(429, json={"retry_after_seconds": 3}, headers={"Retry-After": "60"})
    wire = Wire(limited, (200, {}))

    await send(wire)

    assert wire.at[1] - wire.at[0] == pytest.approx(3)


async def test_a_complete_please_wait_does_not_use_up_the_tries(autojump_clock: MockClock) -> None:
    wait = (503, {"reason": "storage_pressure", "retryable": True, "retry_after_seconds": 30})
    wire = Wire(*[wait] * 6, (200, {}))

    answer = await send(wire, within=60)

    assert answer.status == 200
    assert wire.at[6] - wire.at[0] == pytest.approx(30)


async def test_a_poll_refused_for_capacity_is_given_to_the_poller() -> None:
    wire = Wire((429, {"reason": "long_poll_capacity_exhausted", "retry_after_seconds": 9}))

    answer = await send(wire, POLL)

    assert answer.status == 429
    assert len(wire.requests) == 1


# -- how long it may take --------------------------------------------------------------------------


async def test_a_call_takes_no_longer_than_it_may(autojump_clock: MockClock) -> None:
    async def hang() -> Any:
        await trio.sleep_forever()

    wire = Wire(hang)
    begun = trio.current_time()

    with pytest.raises(ServerUnreachable, match=r"within 2\.5 s"):
        await send(wire, within=2.5)

    assert trio.current_time() - begun == pytest.approx(2.5)


async def test_waits_between_tries_count_too(autojump_clock: MockClock) -> None:
    wire = Wire((503, {"reason": "backend_unavailable", "retryable": True, "retry_after_seconds": 5}))
    begun = trio.current_time()

    with pytest.raises(ServerUnreachable, match="backend_unavailable"):
        await send(wire, within=7)

    assert trio.current_time() - begun == pytest.approx(7)


@pytest.mark.parametrize("within", [0, -1])
async def test_without_time_nothing_is_sent(within: float) -> None:
    wire = Wire((200, {}))

    with pytest.raises(ServerUnreachable, match="no time left"):
        await send(wire, within=within)

    assert wire.requests == []


# -- what an answer must be ------------------------------------------------------------------------


async def test_an_empty_answer_is_nothing() -> None:
    assert (await send(Wire(httpx2.Response(204)))).body is None


@pytest.mark.parametrize("content", [b"<html>", b'{"a":', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
async def test_a_success_that_is_no_json_is_no_answer(autojump_clock: MockClock, content: bytes) -> None:
    with pytest.raises(ServerUnreachable, match="not JSON"):
        await send(Wire(lambda: answer_with(200, content)))


async def answer_with(status: int, content: bytes) -> httpx2.Response:
    return httpx2.Response(status, content=content)


async def test_an_error_page_of_a_proxy_is_still_its_status() -> None:
    answer = await send(Wire(lambda: answer_with(404, b"<html>not here</html>")))

    assert (answer.status, answer.body, answer.reason) == (404, None, None)


def poll_answer(body: Any, status: int = 200) -> Callable[[], Any]:
    async def answer() -> httpx2.Response:
        return httpx2.Response(
            status, content=json.dumps(body).encode(), headers={"Content-Type": f"{POLL_MEDIA_TYPE}; charset=utf-8"}
        )

    return answer


WRAPPED: dict[str, Any] = {
    "schema": "durable-workflow.poll-transport.v1",
    "status": 409,
    "headers": {"retry-after": "1"},
    "body": {"task": None, "reason": "worker_draining"},
}


async def test_the_inner_answer_of_the_poll_transport_replaces_the_outer() -> None:
    answer = await send(Wire(poll_answer(WRAPPED)), POLL)

    assert (answer.status, answer.reason) == (409, "worker_draining")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "other"},
        {"status": 199},
        {"status": 600},
        {"status": True},
        {"status": "200"},
        {"headers": {"set-cookie": "x"}},
        {"headers": {"retry-after": 1}},
        {"headers": []},
    ],
)
async def test_a_malformed_poll_transport_is_no_answer(autojump_clock: MockClock, changes: dict[str, Any]) -> None:
    with pytest.raises(ServerUnreachable, match="poll transport"):
        await send(Wire(poll_answer({**WRAPPED, **changes})), POLL)


async def test_a_poll_transport_whose_statuses_disagree_is_no_answer(autojump_clock: MockClock) -> None:
    with pytest.raises(ServerUnreachable, match="poll transport"):
        await send(Wire(poll_answer(WRAPPED, status=201)), POLL)


# -- refusals --------------------------------------------------------------------------------------


async def test_a_refusal_says_what_where_and_why() -> None:
    answer = await send(Wire((409, {"reason": "run_closed", "error": "the run\x1b[31m is closed", "run_id": "R"})))

    refused = refusal(CONTROL, answer)

    assert str(refused) == "the server refused POST /worker/heartbeat with 409 (run_closed): the run?[31m is closed"
    assert (refused.status, refused.reason, refused.body["run_id"]) == (409, "run_closed", "R")


async def test_a_refusal_keeps_no_registration_token_and_a_bounded_text() -> None:
    answer = await send(Wire((409, {"registration_token": "f" * 32, "message": "x" * 10_000})))

    refused = refusal(CONTROL, answer)

    assert "registration_token" not in refused.body
    assert len(str(refused)) < 1000


async def test_success_is_accepted_as_it_is() -> None:
    answer = await send(Wire((201, {})))

    assert accepted(CONTROL, answer) is answer


# -- two lanes -------------------------------------------------------------------------------------


async def test_a_parked_poll_never_delays_a_control_call() -> None:
    polled = trio.Event()

    async def park() -> Any:
        polled.set()
        await trio.sleep_forever()

    control, polls = Wire((200, {"lane": "control"})), Wire(park)
    async with (
        httpx2.AsyncClient(transport=httpx2.MockTransport(control)) as control_client,
        httpx2.AsyncClient(
            transport=httpx2.MockTransport(polls), limits=httpx2.Limits(max_connections=1)
        ) as poll_client,
        trio.open_nursery() as nursery,
    ):
        opened = Lanes(SETTINGS, control=control_client, polls=poll_client)
        nursery.start_soon(lambda: opened.send(POLL, within=30))
        await polled.wait()

        answer = await opened.send(CONTROL, within=1)

        nursery.cancel_scope.cancel()
    assert answer.body == {"lane": "control"}
    assert [request.url.path for request in control.requests] == ["/api/worker/heartbeat"]
    assert [request.url.path for request in polls.requests] == ["/api/worker/workflow-tasks/poll"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_loopback_server_is_never_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (listener, *_) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            async with open_lanes(ServerSettings(f"http://{host}:{port}"), pollers=1) as opened:
                answered = await opened.send(CONTROL, within=5)
            nursery.cancel_scope.cancel()
    assert answered.status == 200


async def test_an_unused_connection_leaves_nothing_open() -> None:
    async with open_lanes(SETTINGS, pollers=3) as opened:
        assert opened.settings is SETTINGS


# -- tokens ----------------------------------------------------------------------------------------


async def test_a_token_never_leaves_in_an_error(autojump_clock: MockClock) -> None:
    wire = Wire(httpx2.ConnectError("proxy said: Bearer s3cret-token is bad"))

    with pytest.raises(ServerUnreachable) as caught:
        await send(wire)

    assert "s3cret-token" not in str(caught.value)
    assert "[token]" in str(caught.value)


async def test_a_call_of_a_plane_without_a_token_is_our_own_mistake() -> None:
    wire = Wire((200, {}))

    with pytest.raises(UsageError, match="worker_token"):
        await send(wire, settings=ServerSettings("http://server:1", control_token="c"))

    assert wire.requests == []
