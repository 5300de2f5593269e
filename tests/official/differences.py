"""Where the official documents differ from the wire reference, one entry each with its reason; nothing else is waived.

The reference is newer (its README: "the official schemas are a check, not the truth"). An entry replaces one place of
a document, named by its path, before anything is validated; a path that is not there is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ANY_STATUS = {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Difference:
    """One place of a document, what stands there instead, and why."""

    path: str
    instead: Any
    reason: str


_SCHEMAS = "components/schemas"
_CAPABILITIES = f"{_SCHEMAS}/WorkerServerCapabilities"

WORKER_API = (
    Difference(
        f"{_SCHEMAS}/AdvertisedWorkerProtocolVersion/const",
        None,
        "the document is of the 1.19 line with 1.20 as a candidate; a server may advertise 1.18, 1.19 or 1.20",
    ),
    Difference(
        f"{_CAPABILITIES}/required",
        [
            "supported_workflow_task_commands",
            "workflow_task_poll_request_idempotency",
            "workflow_memo_updates",
            "update_validation_tasks",
            "local_activities",
            "sticky_execution",
        ],
        "transport.md §5: a minimal body is valid; the four left out describe features by objects that nobody reads",
    ),
    Difference(
        f"{_CAPABILITIES}/properties/update_validation_tasks/const",
        None,
        "transport.md §5: false where there is no update validation",
    ),
    Difference(
        f"{_SCHEMAS}/WorkflowMemoUpdateCapability/required",
        ["supported"],
        "transport.md §5: `supported` is what is read; the rest repeats the contract",
    ),
    Difference(f"{_SCHEMAS}/LocalActivityCapability/required", ["supported"], "transport.md §5, as for memo updates"),
    Difference(
        f"{_SCHEMAS}/EmptyPoll/allOf/1/properties/poll_status",
        _ANY_STATUS,
        "worker.md §2.1: seven more statuses of an empty poll",
    ),
    Difference(
        f"{_SCHEMAS}/WorkflowTaskPollResponse",
        {
            "anyOf": [
                {"$ref": "#/components/schemas/MultiplexedWorkflowTaskClaim"},
                {"$ref": "#/components/schemas/EmptyPoll"},
            ]
        },
        "with the statuses of worker.md §2.1 an empty poll fits two branches of `oneOf`",
    ),
    Difference(
        "paths//worker/activity-tasks/poll/post/responses/200/content/application~1json/schema",
        {"anyOf": [{"$ref": "#/components/schemas/ActivityTaskClaim"}, {"$ref": "#/components/schemas/EmptyPoll"}]},
        "as for workflow tasks",
    ),
    Difference(
        f"{_SCHEMAS}/ActivityTaskClaim/allOf/1/properties/task/required",
        ["task_id", "activity_type", "attempt_number"],
        "worker.md §3.1: the number is called `attempt_number`",
    ),
    Difference(
        "paths//worker/workflow-tasks/poll/post/responses/409",
        {"$ref": "#/components/responses/WorkerError"},
        "worker.md §2.1: 409 is also task_queue_mismatch, build_id_mismatch and worker_draining",
    ),
    Difference(
        f"{_SCHEMAS}/CooperativeCancellationDeliveryResponse/allOf/1/oneOf/1/properties/reason",
        {"enum": ["cancellation_waiting_for_child", "cancellation_waiting_for_activity"]},
        "cancellation.md §4: a remote activity may be waited for, too",
    ),
    Difference(
        f"{_SCHEMAS}/WorkerRegistrationEnvelope/allOf/1/properties/capability_manifest",
        {
            "anyOf": [
                {"$ref": "#/components/schemas/PortableWorkerCapabilityManifest"},
                {"type": "object", "maxProperties": 0},
            ]
        },
        "transport.md §7: below 1.18 a worker sends no manifest, and the answer repeats what it sent",
    ),
    Difference(
        f"{_SCHEMAS}/WorkerBackendUnavailable/allOf/1/properties/operation/enum",
        [
            "register_worker",
            "heartbeat_worker",
            "deregister_worker",
            "heartbeat_workflow_task",
            "complete_workflow_task",
            "complete_activity_task",
            "poll_workflow_task",
            "poll_activity_task",
            "poll_query_task",
            "poll_update_validation_task",
        ],
        "transport.md §4: also `deregister_worker`",
    ),
)
"""Differences of the worker's OpenAPI document."""

CLUSTER_INFO = (
    Difference(
        "properties/control_plane/properties/version",
        {"type": "string"},
        "decision 4 of the reference: versions are strings",
    ),
    Difference(
        "properties/worker_protocol/properties/version",
        {"type": "string"},
        "decision 4 of the reference: versions are strings",
    ),
    Difference(
        "properties/worker_protocol/properties/server_capabilities",
        {"type": "object"},
        "an older copy of what the worker's document says about the same object, which is checked instead",
    ),
)
"""Differences of the discovery document."""

NEWER_STATUSES = {
    400: "invalid JSON, a bad page token, a bad protocol version (transport.md §6, worker.md §2.2)",
    401: "no known token (transport.md §1)",
    403: "a token without the role (transport.md §1)",
    404: "worker.md §2.6, prepared-local.md §2: something is not there",
    409: "a fence or a capability",
    410: "an expired receipt (worker.md §1.3)",
    412: "a worker that is not registered (worker.md §2.1)",
    413: "a request that is too large",
    422: "validation, structural limits",
    429: "a namespace quota (prepared-local.md §2)",
    503: "transport.md §4",
}
"""Statuses of a refusal that an operation may answer though its part of the document does not list them."""

NEWER_EVENT_TYPES = frozenset(
    {
        "ActivityCancellationAcknowledged",
        "ChildCancellationRequested",
        "ChildCancellationResolved",
        "CooperativeCancellationDelivered",
        "CooperativeCancellationRequested",
        "MemoUpserted",
        "ParentCloseCancellationRequested",
        "SelectionOperationCancelled",
        "SelectionResolved",
    }
)
"""Event types of protocol 1.20 that the published schema (catalog 15) is too old to list."""
