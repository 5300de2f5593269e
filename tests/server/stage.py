"""A server with live claims of every kind, and a valid request for every one of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proctor.core import codec
from proctor.server.routes import CONTROL_ROUTES, WORKER_ROUTES
from server.groups import level
from server.wire import COOPERATIVE, EMPTY_LIST, ENVELOPE, TEXT, Claim, Reply, Wire, Worker, describe_call

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
    {"type": "open_signal_wait", "signal_name": "go", "timeout_seconds": 5},
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

OWN = ("lease_owner", "workflow_task_attempt", "activity_attempt_id", "worker_id", "request_id", "registration_token")
OWN_QUERY = ("query_task_attempt",)


@dataclass
class Ask:
    """One request."""

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

    async def make(self, ask: Ask, namespace: str = "default") -> Reply:
        # The same ids, but the other kind of task, where the path asks for it.
        of_activity = {"task_id": self.names["activity_task_id"]} if "activity-tasks" in ask.path else {}
        names = {**self.names, **of_activity}
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda match: names.get(match[1], "x"), ask.path)
        body = ask.body
        if isinstance(body, dict):
            body = {name: self.identity.get(name, value) if value == "<own>" else value for name, value in body.items()}
        query = "&".join(f"{name}={value}" for name, value in ask.query.items())
        plane = "Protocol" if "/worker/" in path or "external" in path else "Control-Plane"
        version = "1.20" if plane == "Protocol" else "2"
        headers = {f"X-Durable-Workflow-{plane}-Version": version, "X-Namespace": namespace}
        return await self.wire.request(
            ask.method, f"{path}?{query}" if query else path, body, headers=headers, raw=ask.raw
        )


async def world(wire: Wire) -> World:
    """Bring a server into a state with a live claim of each kind."""
    worker = Worker(wire)
    registered = await worker.register(supported_activity_types=["a"])
    await wire.start("queued")
    queued = await worker.poll()
    (await queued.complete({k: v for k, v in COMMANDS[10].items() if not k.startswith("parallel")})).ok()
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


def valid_body(path: str, **fields: Any) -> dict[str, Any]:
    """Give a body that an operation takes; what belongs to the caller is filled in when it is asked."""
    body = {**FIELDS, **dict.fromkeys((*OWN, *OWN_QUERY), "<own>"), **fields}
    for name in REFUSED.get(path, ()):
        del body[name]
    return body
