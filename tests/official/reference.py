"""What only the wire reference says: operations that no stored official document describes, as JSON Schemas.

Worker operations that came after the document, and the control plane, of which no document is stored.
"""

from __future__ import annotations

import re
from typing import Any

Schema = dict[str, Any]

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

_TEXT: Schema = {"type": "string", "minLength": 1}
_NULL: Schema = {"type": "null"}
_TRUE: Schema = {"const": True}
_FALSE: Schema = {"const": False}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "integer", "minimum": 1}
_OPEN: Schema = {"type": "object"}


def _object(**properties: Any) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


def _rows(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


_RENEWED = _object(
    lease_renewed=_TRUE,
    can_continue=_TRUE,
    cancel_requested=_FALSE,
    heartbeat_recorded=_FALSE,
    reason=_NULL,
    server_time=_TEXT,
    lease_expires_at=_TEXT,
    workflow_task_id=_TEXT,
    workflow_instance_id=_TEXT,
    workflow_run_id=_TEXT,
    activity_execution_id=_TEXT,
    activity_attempt_id=_TEXT,
    attempt_number=_NUMBER,
    lease_owner=_TEXT,
)
_DEREGISTERED = _object(
    worker_id=_TEXT,
    registration_token={"type": "string", "pattern": "^[0-9a-f]{32}$"},
    outcome={"const": "deregistered"},
    recovered_workflow_task_count=_COUNT,
)
_PROGRESS = _object(
    active={"type": "boolean"},
    renewed=_FALSE,
    stop_required={"type": "boolean"},
    reason=_maybe(_TEXT),
    activity_execution_id=_TEXT,
    activity_attempt_id=_TEXT,
    workflow_task_id=_TEXT,
    workflow_task_attempt=_NUMBER,
    lease_owner=_TEXT,
    heartbeat_recorded={"type": "boolean"},
    heartbeat_history_event_id=_maybe(_TEXT),
    heartbeat_deadline_at=_maybe(_TEXT),
    server_time=_TEXT,
    history_refresh_page_token=_TEXT,
)
_GROUP = _object(
    checkpointed=_TRUE,
    duplicate={"type": "boolean"},
    reason=_NULL,
    checkpoint_id=_TEXT,
    task_id=_TEXT,
    workflow_run_id=_TEXT,
    lease_owner=_TEXT,
    workflow_task_attempt=_NUMBER,
    start_sequence=_NUMBER,
    next_sequence=_NUMBER,
    local_activities=_rows(_object(sequence=_NUMBER, activity_execution_id=_TEXT)),
    history_refresh_page_token=_TEXT,
)
_QUERY_STATUS = _object(
    query_task_id=_TEXT,
    query_task_attempt=_NUMBER,
    lease_owner=_TEXT,
    lease_expires_at=_TEXT,
    query_admitted_at=_TEXT,
    query_deadline_at=_TEXT,
    can_continue=_TRUE,
    query_task_status={"const": "leased"},
    reason=_NULL,
    server_time=_TEXT,
)

_UPLOADED = _object(
    schema={"const": "durable-workflow.v2.runtime-external-payload-upload.v1"},
    transport_version={"const": 1},
    reference={
        **_object(
            schema={"const": "durable-workflow.v2.runtime-external-payload-reference.v1"},
            reference_id={"type": "string", "pattern": "^ep_[0-9A-HJKMNP-TV-Z]{26}$"},
            codec={"const": "avro"},
            size_bytes=_COUNT,
            sha256={"type": "string", "pattern": "^[0-9a-f]{64}$"},
        ),
        "additionalProperties": False,
    },
)
_UPLOAD = "/external-payloads/v1"

_WORKER: tuple[tuple[str, str, Schema], ...] = (
    ("POST", "/worker/registrations/.+/deregister", _DEREGISTERED),
    ("POST", "/worker/activity-tasks/[^/]+/renew-lease", _RENEWED),
    ("POST", "/worker/workflow-tasks/[^/]+/local-activities/checkpoint-group", _GROUP),
    ("POST", "/worker/workflow-tasks/[^/]+/local-activities/[^/]+/heartbeat", _PROGRESS),
    ("GET", "/worker/query-tasks/[^/]+/status", _QUERY_STATUS),
    ("POST", _UPLOAD, _UPLOADED),
)

_RUN = _object(
    workflow_id=_TEXT,
    run_id=_TEXT,
    workflow_type=_TEXT,
    namespace=_TEXT,
    task_queue=_maybe(_TEXT),
    status={"enum": ["pending", "running", "waiting", "completed", "failed", "cancelled", "terminated"]},
    status_bucket={"enum": ["running", "completed", "failed"]},
    is_terminal={"type": "boolean"},
    closed_reason=_maybe(_TEXT),
    run_number=_NUMBER,
    started_at=_TEXT,
    closed_at=_maybe(_TEXT),
    memo=_OPEN,
    search_attributes=_OPEN,
)
_EVENT = _object(sequence=_NUMBER, event_type=_TEXT, timestamp=_TEXT, payload=_OPEN)
_WORKER_ROW = _object(
    worker_id=_TEXT,
    task_queue=_TEXT,
    runtime=_TEXT,
    namespace=_TEXT,
    sdk_version=_maybe(_TEXT),
    build_id=_maybe(_TEXT),
    status={"enum": ["active", "draining", "stale", "superseded"]},
    max_concurrent_workflow_tasks=_COUNT,
    max_concurrent_activity_tasks=_COUNT,
    supported_workflow_types=_rows(_TEXT),
    supported_activity_types=_rows(_TEXT),
    last_heartbeat_at=_TEXT,
    registered_at=_TEXT,
    heartbeat_interval_seconds=_NUMBER,
)
_CANCELLATION = _object(
    workflow_id=_TEXT,
    run_id=_TEXT,
    accepted=_TRUE,
    duplicate={"type": "boolean"},
    run_status=_TEXT,
    cancellation_request=_object(
        request_id=_TEXT,
        requested_at=_TEXT,
        cleanup_deadline_at=_TEXT,
        delivery_sequence=_maybe(_NUMBER),
        delivered_at=_maybe(_TEXT),
        history_refresh_page_token=_TEXT,
    ),
)
_SESSION = _object(
    session_id=_TEXT,
    namespace=_TEXT,
    queue=_maybe(_TEXT),
    requirements=_rows(_TEXT),
    status={"enum": ["active", "closed", "expired", "failed", "orphaned"]},
    lease_owner=_maybe(_TEXT),
    failure_reason={"enum": [None, "lease_expired", "ttl_expired", "worker_heartbeat_stale"]},
    active_activity_count=_COUNT,
)
_WF = "/workflows/[^/]+"
_ANY_RUN = f"{_WF}(?:/runs/[^/]+)?"

_CONTROL: tuple[tuple[str, str, frozenset[int], Schema], ...] = (
    ("POST", "/workflows", frozenset({200, 201}), _object(workflow_id=_TEXT, workflow_type=_TEXT, run_id=_TEXT)),
    (
        "GET",
        "/workflows",
        frozenset({200}),
        _object(workflows=_rows(_RUN), workflow_count=_COUNT, next_page_token=_maybe(_TEXT)),
    ),
    ("GET", _ANY_RUN, frozenset({200}), _RUN),
    ("GET", f"{_WF}/runs", frozenset({200}), _object(workflow_id=_TEXT, run_count=_NUMBER, runs=_rows(_RUN))),
    (
        "GET",
        f"{_WF}/runs/[^/]+/history",
        frozenset({200}),
        _object(workflow_id=_TEXT, run_id=_TEXT, events=_rows(_EVENT), next_page_token=_maybe(_TEXT)),
    ),
    (
        "GET",
        f"{_WF}/runs/[^/]+/history/export",
        frozenset({200}),
        _object(
            schema={"const": "durable-workflow.v2.history-export"},
            schema_version={"const": 1},
            exported_at=_TEXT,
            workflow=_object(instance_id=_TEXT, run_id=_TEXT, workflow_type=_TEXT),
            history_events=_rows(_object(sequence=_NUMBER, type=_TEXT, payload=_OPEN)),
            codec_schemas=_OPEN,
            integrity=_object(canonicalization=_TEXT, checksum=_TEXT),
        ),
    ),
    ("POST", f"{_WF}/cancel", frozenset({200}), _OPEN),
    ("POST", f"{_WF}/terminate", frozenset({200}), _OPEN),
    ("POST", f"{_ANY_RUN}/request-cancellation", frozenset({200, 202}), _CANCELLATION),
    ("POST", f"{_ANY_RUN}/signal/.+", frozenset({202}), _object(workflow_id=_TEXT, signal_name=_TEXT)),
    ("POST", f"{_ANY_RUN}/query/.+", frozenset({200}), _object(workflow_id=_TEXT, query_name=_TEXT)),
    (
        "POST",
        f"{_ANY_RUN}/update/.+",
        frozenset({200, 202}),
        _object(workflow_id=_TEXT, update_id=_TEXT, update_status={"enum": ["accepted", "completed", "failed"]}),
    ),
    ("GET", "/workers", frozenset({200}), _object(workers=_rows(_WORKER_ROW))),
    ("GET", "/workers/.+", frozenset({200}), _WORKER_ROW),
    ("DELETE", "/workers/.+", frozenset({200}), _object(worker_id=_TEXT, outcome={"const": "deregistered"})),
    (
        "GET",
        "/worker-sessions",
        frozenset({200}),
        _object(namespace=_TEXT, metrics=_object(total=_COUNT, active=_COUNT), sessions=_rows(_SESSION)),
    ),
    ("GET", "/worker-sessions/.+", frozenset({200}), _object(namespace=_TEXT, session=_SESSION)),
    ("GET", "/namespaces/[^/]+", frozenset({200}), _object(name=_TEXT, external_payload_storage=_maybe(_OPEN))),
    ("GET", "/task-queues", frozenset({200}), _object(namespace=_TEXT, task_queues=_rows(_object(name=_TEXT)))),
    ("POST", _UPLOAD, frozenset({201}), _UPLOADED),
    (
        "GET",
        "/task-queues/.+",
        frozenset({200}),
        _object(
            name=_TEXT, namespace=_TEXT, stats=_OPEN, admission=_OPEN, pollers=_rows(_OPEN), current_leases=_rows(_OPEN)
        ),
    ),
)
_REFUSAL = _object(message=_TEXT, reason=_TEXT)
_INVALID = _object(errors={"type": "object", "additionalProperties": _rows(_TEXT)})


def worker_schema(method: str, path: str) -> Schema | None:
    """Give the schema of a success of the worker plane that the official document does not have."""
    return next(
        (schema for verb, pattern, schema in _WORKER if verb == method and re.fullmatch(pattern, path)),
        None,
    )


def control_schema(method: str, path: str) -> tuple[frozenset[int], Schema] | None:
    """Give the statuses and the schema of a success of the control plane."""
    return next(
        (
            (statuses, schema)
            for verb, pattern, statuses, schema in _CONTROL
            if verb == method and re.fullmatch(pattern, path)
        ),
        None,
    )


def refusal_schemas(status: int, reason: object) -> tuple[Schema, ...]:
    """Give what the body of a control-plane refusal must be."""
    return (_REFUSAL, _INVALID) if status == 422 and reason == "validation_failed" else (_REFUSAL,)
