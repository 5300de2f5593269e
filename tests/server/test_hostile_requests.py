"""Hostile requests at every endpoint: whatever a field holds, the answer is one of the protocol and the server lives.

Hypothesis spoils requests that are valid in a server with live claims of every kind. The watch over all tests holds
each answer against the official documents, too.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proctor.core import codec
from proctor.server.routes import CONTROL_ROUTES, WORKER_ROUTES
from server.groups import level
from server.wire import (
    COOPERATIVE,
    EMPTY_LIST,
    ENVELOPE,
    TEXT,
    Claim,
    Reply,
    Wire,
    Worker,
    describe_call,
    running_server,
)

PAYLOAD = {"codec": "avro", "blob": EMPTY_LIST}
GROUP = level("activity", 1, 1, 0)
RETRY = {"max_attempts": 2, "backoff_seconds": [1], "non_retryable_error_types": ["E"]}
COMMANDS: tuple[dict[str, Any], ...] = (
    {"type": "complete_workflow", "result": ENVELOPE},
    {"type": "fail_workflow", "message": "m", "exception": {"type": "E", "message": "m"}, "non_retryable": True},
    {"type": "continue_as_new", "arguments": PAYLOAD, "workflow_type": "t", "task_queue": "q"},
    {"type": "record_side_effect", "result": TEXT},
    {"type": "record_version_marker", "change_id": "c", "version": 1, "min_supported": 1, "max_supported": 2},
    {"type": "upsert_memo", "entries": {"codec": "avro", "blob": codec.encode({"a": 1})}},
    {"type": "upsert_search_attributes", "attributes": {"a": "b", "n": 1}, "attribute_types": {"a": "keyword"}},
    {"type": "start_timer", "delay_seconds": 5, "timer_id": "t1"},
    {"type": "open_condition_wait", "condition_key": "k", "timeout_seconds": 5, "condition_wait_occurrence_id": "o"},
    {
        "type": "schedule_activity",
        "activity_type": "a",
        "arguments": PAYLOAD,
        "queue": "q",
        "retry_policy": RETRY,
        "start_to_close_timeout": 5,
        "schedule_to_close_timeout": 9,
        "schedule_to_start_timeout": 9,
        "heartbeat_timeout": 2,
        "cancellation_policy": "try_cancel",
        **GROUP,
        "parallel_group_path": [GROUP],
    },
    {
        "type": "start_child_workflow",
        "workflow_type": "t",
        "arguments": PAYLOAD,
        "queue": "q",
        "parent_close_policy": "abandon",
        "cancellation_policy": "abandon",
        "retry_policy": RETRY,
        "execution_timeout_seconds": 5,
        "run_timeout_seconds": 5,
    },
    {
        "type": "cancel_selection_operation",
        "selection_group_id": "select-calls:1:1",
        "member_key": "k",
        "member_index": 0,
        "member_base_sequence": 1,
        "member_size": 1,
        "operation_kind": "timer",
        "operation_identity": "i",
    },
    {
        "type": "record_local_activity",
        "activity_type": "a",
        "arguments": PAYLOAD,
        "result": ENVELOPE,
        "outcome": "completed",
        "execution_mode": "local",
        "retry_policy": {"max_attempts": 2, "backoff_seconds": [1]},
        "attempts": [
            {
                "attempt_number": 1,
                "outcome": "failed",
                "message": "m",
                "exception_type": "E",
                "retry_reason": "failure",
                "backoff_seconds": 1,
                "heartbeats": [{"elapsed_ms": 1, "details": {"a": 1}}],
                "duration_ms": 5,
            },
            {"attempt_number": 2, "outcome": "completed"},
        ],
    },
)
# Every field that some endpoint reads, each with a value it would take; other endpoints ignore it.
FIELDS: dict[str, Any] = {
    "sequence": 1,
    "descriptor": describe_call(retry_policy=RETRY, start_to_close_timeout=5, cancellation_policy="try_cancel"),
    "worker_attempt_id": "n2",
    "renew_lease": True,
    "progress": {"details": {"a": 1}},
    "report": {"outcome": "completed", "result": ENVELOPE},
    "checkpoint_id": "c",
    "start_sequence": 1,
    "next_history_page_token": "MA==",
    "history_page_size": 10,
    "failure": {"message": "m", "type": "E", "stack_trace": "s", "non_retryable": True, "details": ENVELOPE},
    "call_kind": "timer",
    "sequence_span": 1,
    "operation_sequence": 1,
    "operation_sequence_span": 1,
    "result": ENVELOPE,
    "result_envelope": ENVELOPE,
    "details": {"a": 1},
    "current": 1,
    "total": 2,
    "unit": "files",
    "message": "m",
    "runtime": "python",
    "sdk_version": "x/1",
    "build_id": None,
    "supported_workflow_types": ["t"],
    "supported_activity_types": ["a"],
    "workflow_definition_fingerprints": {"t": "f"},
    "workflow_command_contracts": {"t": {"signals": ["go"], "queries": ["q"], "updates": ["u"]}},
    "capabilities": list(COOPERATIVE),
    "capability_manifest": {
        key: {"supported": False, "minimum_protocol_version": "1.18"}
        for key in ("local_activities", "worker_sessions", "sticky_execution")
    },
    "max_concurrent_workflow_tasks": 5,
    "max_concurrent_activity_tasks": 5,
    "max_concurrent_worker_sessions": 5,
    "task_slots": {"workflow_available": 1, "activity_available": 1, "session_available": 1},
    "process_metrics": {"cpu_percent": 1.5, "memory_bytes": 5, "process_id": 7, "host": "h", "process_started_at": "s"},
    "heartbeat_interval_seconds": 10,
    "poll_request_id": "p",
    "timeout_seconds": 0,
    "task_kinds": ["workflow"],
    "message_stream_cursors": [],
    "message_stream_waits": [],
    "sticky_cache": None,
    "workflow_id": "wf",
    "workflow_type": "t",
    "task_queue": "q",
    "input": PAYLOAD,
    "duplicate_policy": "fail",
    "execution_timeout_seconds": 60,
    "run_timeout_seconds": 60,
    "memo": {"a": 1},
    "search_attributes": {"a": "b"},
    "priority": 1,
    "fairness_key": "f",
    "fairness_weight": 1,
    "reason": "r",
    "cleanup_timeout_seconds": 5,
    "wait_for": "accepted",
    "wait_timeout_seconds": 1,
    "session_id": "s",
    "worker_group": "g",
    "lease_timeout_seconds": 30,
    "ttl_seconds": 60,
    "requirements": {"gpu": True},
}
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
# What an operation refuses although another one reads it.
REFUSED = {"/api/workflows": ("request_id",)}
POLLS = [("POST", f"/api/worker/{kind}-tasks/poll") for kind in ("workflow", "activity", "query")]
ROUTES = [
    *POLLS,
    *((method, path) for method, path, _ in WORKER_ROUTES),
    *((method, path) for method, path, _, _ in CONTROL_ROUTES),
    ("GET", "/api/namespaces/{name}"),
    ("GET", "/api/cluster/info"),
    ("POST", "/api/external-payloads/v1"),
    ("GET", "/api/external-payloads/v1/{reference_id}"),
]

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


@dataclass
class Attack:
    """One spoilt request."""

    method: str
    path: str
    body: Any
    query: Mapping[str, str]
    raw: bytes | None


@dataclass
class World:
    """A server in which most requests have something to work on."""

    wire: Wire
    names: dict[str, str]
    identity: dict[str, Any]

    async def make(self, attack: Attack) -> Reply:
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda match: self.names.get(match[1], "x"), attack.path)
        body = attack.body
        if isinstance(body, dict):
            body = {name: self.identity.get(name, value) if value == "<own>" else value for name, value in body.items()}
        query = "&".join(f"{name}={value}" for name, value in attack.query.items())
        plane = "Protocol" if "/worker/" in path or "external" in path else "Control-Plane"
        headers = {f"X-Durable-Workflow-{plane}-Version": "1.20" if plane == "Protocol" else "2"}
        return await self.wire.request(
            attack.method, f"{path}?{query}" if query else path, body, headers=headers, raw=attack.raw
        )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Walk over every place in a JSON value, itself excepted."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


OWN = ("lease_owner", "workflow_task_attempt", "activity_attempt_id", "worker_id", "request_id", "registration_token")
OWN_QUERY = ("query_task_attempt",)


@st.composite
def attacks(draw: st.DrawFn) -> Attack:
    """Draw a route and a valid request for it, and spoil up to two places."""
    method, path = draw(st.sampled_from(ROUTES))
    body: Any = {**FIELDS, **dict.fromkeys((*OWN, *OWN_QUERY), "<own>")}
    body["commands"] = [draw(st.sampled_from(COMMANDS))]
    for name in REFUSED.get(path, ()):
        del body[name]
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
    return Attack(method, path, body, query, raw)


def _query_safe(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))


async def world(wire: Wire) -> World:
    """Bring a server into a state with a live claim of each kind."""
    worker = Worker(wire)
    registered = await worker.register(supported_activity_types=["a"])
    await wire.start("queued")
    queued = await worker.poll()
    (await queued.complete({k: v for k, v in COMMANDS[9].items() if not k.startswith("parallel")})).ok()
    activity = (
        await wire.worker("/activity-tasks/poll", {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0})
    ).ok()["task"]
    await wire.start()
    claim: Claim = await worker.poll()
    attempt = await claim.prepared()
    request = (await wire.cancel_cooperatively("queued"))["cancellation_request"]
    return World(
        wire,
        {
            "task_id": claim.task["task_id"],
            "attempt_id": attempt.id,
            "workflow_id": "wf",
            "run_id": claim.task["run_id"],
            "worker_id": "w",
            "name": "default",
            "activity_task_id": activity["task_id"],
        },
        {
            **claim.identity,
            "activity_attempt_id": activity["activity_attempt_id"],
            "worker_id": "w",
            "request_id": request["request_id"],
            "registration_token": registered["registration_token"],
            "query_task_attempt": 1,
        },
    )


def survived(reply: Reply) -> None:
    """Fail on anything that is not an answer of the protocol."""
    assert reply.status < 500, (reply.status, reply.body)
    if reply.status >= 400:
        assert reply.body["reason"]
        assert "Traceback" not in str(reply.body)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(attacks(), min_size=1, max_size=12))
async def test_no_request_makes_the_server_fail(requests: list[Attack]) -> None:
    async with running_server() as wire:
        stage = await world(wire)
        activities = {**stage.names, "task_id": stage.names["activity_task_id"]}
        for attack in requests:
            # The same ids, but the other kind of task, where the path asks for it.
            of_activity = "activity-tasks" in attack.path
            survived(await World(wire, activities if of_activity else stage.names, stage.identity).make(attack))
        assert (await wire.control("GET", "/workflows")).status == 200
        await wire.store.transact(lambda tx: None)


async def test_the_valid_requests_that_are_spoilt_are_valid(wire: Wire) -> None:
    """Otherwise the spoilt ones would all fail for the same reason."""
    stage = await world(wire)
    own = dict.fromkeys((*OWN, *OWN_QUERY), "<own>")

    async def ask(path: str, method: str = "POST", **fields: Any) -> Reply:
        names = stage.names | ({"task_id": stage.names["activity_task_id"]} if "activity-tasks" in path else {})
        body = {**FIELDS, **own, **fields}
        for name in REFUSED.get(path, ()):
            del body[name]
        return await World(wire, names, stage.identity).make(Attack(method, path, body, {}, None))

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
