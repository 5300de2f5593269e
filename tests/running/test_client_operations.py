"""What the client sends for signals, queries and updates, and how it reads the answers."""

from __future__ import annotations

from typing import Any

import pytest

from proctor import Client
from proctor.core.codec import decode_value, envelope
from proctor.errors import ProtocolBreach, ServerRefused, UpdateFailed
from proctor.transport.calls import Answer, Call
from running.worlds import world


class _Recorder:
    """A transport that keeps what it is given, and answers from a list."""

    def __init__(self, *answers: Answer) -> None:
        self.calls: list[Call] = []
        self._answers = list(answers)

    async def send(self, call: Call, *, within: float) -> Answer:
        self.calls.append(call)
        return self._answers.pop(0)


def _client(*answers: Answer) -> tuple[Client, _Recorder]:
    client, recorder = Client("http://127.0.0.1:9"), _Recorder(*answers)
    client._transport = recorder
    return client, recorder


def _body(call: Call) -> dict[str, Any]:
    assert call.body is not None
    return dict(call.body)


async def test_a_signal_carries_its_arguments_and_a_key_that_makes_it_safe_to_repeat() -> None:
    client, sent = _client(Answer(202, {"outcome": "signal_received"}), Answer(202, {}))

    receipt = await client.signal("wf-1", "go on", ["x", 2])
    await client.signal("wf-1", "go on", request_id="mine")

    first, second = sent.calls
    assert (first.method, first.path) == ("POST", "/workflows/wf-1/signal/go%20on")
    assert decode_value(_body(first)["input"], None) == ["x", 2]
    assert 1 <= len(_body(first)["request_id"]) <= 255
    assert _body(second) == {"request_id": "mine"}
    assert receipt["outcome"] == "signal_received"


async def test_a_query_gives_the_decoded_answer_whichever_form_it_has() -> None:
    client, sent = _client(
        Answer(200, {"result": None, "result_envelope": envelope({"n": 1})}), Answer(200, {"result": [1, 2]})
    )

    assert await client.query("wf-1", "state") == {"n": 1}
    assert await client.query("wf-1", "state", ["deep"]) == [1, 2]
    assert sent.calls[0].path == "/workflows/wf-1/query/state"
    assert _body(sent.calls[0]) == {}


async def test_an_update_waits_for_what_it_is_told_to() -> None:
    client, sent = _client(Answer(200, {"update_status": "completed", "result_envelope": envelope(3)}))

    told = await client.update("wf-1", "add", [3], wait_timeout_seconds=5)

    body = _body(sent.calls[0])
    assert (body["wait_for"], body["wait_timeout_seconds"]) == ("completed", 5)
    assert (told["update_status"], told["result"]) == ("completed", 3)


async def test_an_update_whose_handler_failed_says_which_one_and_why() -> None:
    told = {"update_status": "failed", "update_id": "U", "failure_message": "no such page", "reason": None}
    client, _ = _client(Answer(422, told))

    with pytest.raises(UpdateFailed, match="update 'add' of workflow 'wf-1' failed: no such page") as caught:
        await client.update("wf-1", "add")

    assert (caught.value.workflow_id, caught.value.update_id) == ("wf-1", "U")


async def test_an_update_that_was_not_accepted_is_a_refusal() -> None:
    client, _ = _client(Answer(422, {"reason": "update_validator_rejected", "message": "too much"}))

    with pytest.raises(ServerRefused, match="too much"):
        await client.update("wf-1", "add")


async def test_a_handle_gives_what_the_handler_answered_or_says_that_it_has_not() -> None:
    client, _ = _client(
        Answer(200, {"update_status": "completed", "result_envelope": envelope(3)}),
        Answer(202, {"update_status": "accepted", "update_id": "U", "wait_timed_out": True}),
    )
    handle = client.handle("wf-1")

    assert await handle.update("add", 1) == 3
    with pytest.raises(UpdateFailed, match="not answered yet"):
        await handle.update("add", 1)


async def test_pages_are_read_to_the_end_and_a_token_that_comes_back_is_a_breach() -> None:
    pages = [
        Answer(200, {"workflows": [{"workflow_id": "a"}], "next_page_token": "2"}),
        Answer(200, {"workflows": [{"workflow_id": "b"}], "next_page_token": None}),
    ]
    client, sent = _client(*pages)
    assert [one["workflow_id"] for one in await client.list_workflows(status="running")] == ["a", "b"]
    assert [call.query.get("next_page_token") for call in sent.calls] == [None, "2"]
    assert {call.query["status"] for call in sent.calls} == {"running"}

    client, _ = _client(*[Answer(200, {"workflows": [], "next_page_token": "2"})] * 2)
    with pytest.raises(ProtocolBreach, match="repeats a page token"):
        await client.list_workflows()


async def test_the_server_lists_and_terminates() -> None:
    async with world() as here:
        await here.client.start_workflow("chain", task_queue="q", workflow_id="wf-1")
        await here.client.start_workflow("other", task_queue="q", workflow_id="wf-2")

        await here.client.terminate("wf-2", "enough")

        assert {one["workflow_id"] for one in await here.client.list_workflows()} == {"wf-1", "wf-2"}
        assert [one["workflow_id"] for one in await here.client.list_workflows(workflow_type="chain")] == ["wf-1"]
        assert (await here.client.describe("wf-2"))["status"] == "terminated"
