"""Hostile requests at every endpoint: whatever a field holds, the answer is one of the protocol and the server lives.

Hypothesis spoils requests that are valid in a server with live claims of every kind. The watch over all tests holds
each answer against the official documents, too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.groups import level
from server.stage import COMMANDS, ROUTES, Ask, valid_body, world
from server.wire import (
    COOPERATIVE,
    Reply,
    Wire,
    Worker,
    describe_call,
    running_server,
)

QUERIES = (
    "page_size",
    "next_page_token",
    "status",
    "workflow_type",
    "task_queue",
    "query",
    "namespace",
    "wait_new_event",
    "lease_owner",
    "query_task_attempt",
)
odd_texts = st.sampled_from(["", " ", "x" * 300, "\x00", "💥", "1" * 5000, "MA==", "a/b", "wf", "t", "q"])
texts = st.text(max_size=20) | odd_texts
numbers = st.integers() | st.sampled_from([0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30]) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers.filter(lambda number: abs(number) < 1e308) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
) | st.sampled_from(
    [{"codec": "avro"}, {"codec": "json", "blob": "x"}, {"codec": "avro", "blob": 5}, [[]] * 30, COMMANDS[0]]
)
raws = st.binary(max_size=30) | values.map(lambda value: json.dumps(value).encode())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Walk over every place in a JSON value, itself excepted."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


@st.composite
def attacks(draw: st.DrawFn) -> Ask:
    """Draw a route and a valid request for it, and spoil up to two places."""
    method, path = draw(st.sampled_from(ROUTES))
    body: Any = valid_body(path, commands=[draw(st.sampled_from(COMMANDS))])
    for _ in range(draw(st.integers(0, 2))):
        body = copy.deepcopy(body)
        # A deep place of the commands or the descriptor as often as a field.
        where = draw(st.sampled_from(sorted(body, key=str)))
        place = draw(st.sampled_from([(where,), *places(body[where], (where,))]))
        inner = body
        for key in place[:-1]:
            inner = inner[key]
        if draw(st.booleans()) or isinstance(inner, list):
            inner[place[-1]] = draw(values)
        else:
            del inner[place[-1]]
    raw = draw(raws) if draw(st.integers(0, 5)) == 0 else None
    query = draw(st.dictionaries(st.sampled_from(QUERIES), texts.map(_query_safe), max_size=2))
    return Ask(method, path, body, query, raw)


def _query_safe(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))


def survived(reply: Reply) -> None:
    """Fail on anything that is not an answer of the protocol."""
    assert reply.status < 500, (reply.status, reply.body)
    if reply.status >= 400:
        assert reply.body["reason"]
        assert "Traceback" not in str(reply.body)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(attacks(), min_size=1, max_size=12))
async def test_no_request_makes_the_server_fail(requests: list[Ask]) -> None:
    async with running_server() as wire:
        stage = await world(wire)
        for request in requests:
            survived(await stage.make(request))
        assert (await wire.control("GET", "/workflows")).status == 200
        await wire.store.transact(lambda tx: None)


GROUP = level("mixed", 1, 2, 0)
SELECTION = {
    **level("mixed", 1, 1, 0),
    "parallel_group_id": "select-calls:1:1",
    "parallel_group_mode": "select",
    "selection_member_key": "k",
    "selection_member_index": 0,
    "selection_member_base_sequence": 1,
    "selection_member_size": 1,
    "selection_member_kind": "timer",
}
SESSION = {"session_id": "s", "queue": "q", "requirements": ["r"], "lease_seconds": 9, "ttl_seconds": 9}
GROUPED = (
    *COMMANDS,
    {"type": "start_timer", "delay_seconds": 5, **GROUP, "parallel_group_path": [GROUP]},
    {"type": "start_timer", "delay_seconds": 5, **SELECTION, "parallel_group_path": [SELECTION]},
    {"type": "schedule_activity", "activity_type": "a", "worker_session": SESSION},
)


@pytest.mark.parametrize("value", [[], {}, 2**63], ids=repr)
async def test_no_place_of_a_nested_field_takes_a_value_that_breaks_the_server(value: Any) -> None:
    """Every place, and not only drawn ones: a value that has no hash, or that no column holds, fails late."""
    attacks = list(spoilt_everywhere(value))
    assert len(attacks) > 200
    while attacks:
        async with running_server() as wire:
            stage = await world(wire)
            while attacks:
                reply = await stage.make(attacks.pop())
                survived(reply)
                if reply.status < 300:
                    break  # the claim is used up


def spoilt_everywhere(value: Any) -> Iterator[Ask]:
    """Put a value into every place of what the endpoints read of commands, descriptors, reports and registrations."""
    task = "/api/worker/workflow-tasks/{task_id}"
    asked: list[tuple[str, dict[str, Any], str]] = [
        (task + "/complete", {"commands": [c]}, "commands") for c in GROUPED
    ]
    for operation in ("checkpoint", "checkpoint-group"):
        commands = [{**describe_call(), "type": "prepare_local_activity", **GROUP, "parallel_group_path": [GROUP]}]
        asked.append((f"{task}/local-activities/{operation}", {"commands": commands}, "commands"))
    asked += [
        (task + "/local-activities/prepare", {}, "descriptor"),
        (task + "/local-activities/{attempt_id}/outcome", {}, "report"),
        (task + "/local-activities/{attempt_id}/heartbeat", {}, "progress"),
        ("/api/worker/register", {}, "workflow_command_contracts"),
        ("/api/worker/register", {}, "capability_manifest"),
        ("/api/worker/register", {}, "process_metrics"),
    ]
    for path, fields, where in asked:
        valid = valid_body(path, **fields)
        for place in places(valid[where], (where,)):
            body = copy.deepcopy(valid)
            inner: Any = body
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            yield Ask("POST", path, body, {}, None)


async def test_the_valid_requests_that_are_spoilt_are_valid(wire: Wire) -> None:
    """Otherwise the spoilt ones would all fail for the same reason."""
    stage = await world(wire)

    async def ask(path: str, **fields: Any) -> Reply:
        return await stage.make(Ask("POST", path, valid_body(path, **fields), {}, None))

    task = "/api/worker/workflow-tasks/{task_id}"
    local = task + "/local-activities/{attempt_id}"
    for path in (task + "/heartbeat", task + "/history", local + "/control", local + "/heartbeat", local + "/outcome"):
        (await ask(path)).ok()
    (await ask("/api/worker/activity-tasks/{task_id}/status")).ok()
    (await ask("/api/worker/activity-tasks/{task_id}/heartbeat")).ok()
    (await ask("/api/workflows", workflow_id="another")).ok(201)
    wrong = []
    worker = Worker(wire, "commands", (*COOPERATIVE, "local_activities", "memo_upserts", "typed_search_attributes"))
    await worker.register()
    for number, command in enumerate(COMMANDS):
        await wire.start(f"next-{number}")
        while (claim := await worker.poll()).task["workflow_id"] != f"next-{number}":
            (await claim.complete()).ok()
        reply = await claim.complete(command)
        if reply.status != 200:
            wrong.append((command["type"], reply.status, reply.reason, reply.body.get("errors")))
    # No selection of this run has lost members.
    wrong = [found for found in wrong if found[0] != "cancel_selection_operation"]
    assert not wrong, "\n".join(map(str, wrong))


READS: tuple[Callable[[Wire], Awaitable[Reply]], ...] = (
    lambda wire: wire.control("GET", "/workflows?page_size=" + "1" * 5000),
    lambda wire: wire.control("GET", "/workflows?page_size=0"),
    lambda wire: wire.control("GET", "/workflows?next_page_token=%00"),
    lambda wire: wire.control("GET", "/workflows/" + "x" * 5000),
    lambda wire: wire.control("GET", "/workflows/%00"),
)


async def test_reads_with_impossible_parameters_are_refused_or_empty(wire: Wire) -> None:
    for read in READS:
        survived(await read(wire))
