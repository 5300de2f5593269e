"""Which operation answers which method and path on both planes; polls are apart, in `polling`."""

from __future__ import annotations

from proctor.server.operations import (
    activity_tasks,
    commands,
    fleet,
    inspection,
    local_activities,
    queries,
    updates,
    validations,
    worker_sessions,
    workers,
    workflow_tasks,
    workflows,
)
from proctor.server.operations.calls import Operation

_TASK = "/api/worker/workflow-tasks/{task_id}"
_LOCAL = _TASK + "/local-activities"
_ACTIVITY = "/api/worker/activity-tasks/{task_id}"
_QUERY = "/api/worker/query-tasks/{task_id}"
_VALIDATION = "/api/worker/update-validation-tasks/{task_id}"

# Routes are tried in order, so those of a running attempt come first.
WORKER_ROUTES: tuple[tuple[str, str, Operation], ...] = (
    ("POST", _LOCAL + "/{attempt_id}/control", local_activities.control),
    ("POST", _LOCAL + "/{attempt_id}/heartbeat", local_activities.heartbeat),
    ("POST", _LOCAL + "/{attempt_id}/outcome", local_activities.outcome),
    ("POST", _LOCAL + "/{attempt_id}/acknowledge-cancellation", local_activities.acknowledge_cancellation),
    ("POST", _LOCAL + "/prepare", local_activities.prepare),
    ("POST", _LOCAL + "/checkpoint", local_activities.checkpoint),
    ("POST", _LOCAL + "/checkpoint-group", local_activities.checkpoint_group),
    ("POST", _LOCAL + "/recover", local_activities.recover),
    ("POST", _TASK + "/heartbeat", workflow_tasks.heartbeat),
    ("POST", _TASK + "/history", workflow_tasks.history),
    ("POST", _TASK + "/complete", workflow_tasks.complete),
    ("POST", _TASK + "/fail", workflow_tasks.fail),
    ("POST", _TASK + "/deliver-cancellation", workflow_tasks.deliver_cancellation),
    ("POST", _ACTIVITY + "/renew-lease", activity_tasks.renew_lease),
    ("POST", _ACTIVITY + "/heartbeat", activity_tasks.heartbeat),
    ("POST", _ACTIVITY + "/status", activity_tasks.status),
    ("POST", _ACTIVITY + "/complete", activity_tasks.complete),
    ("POST", _ACTIVITY + "/fail", activity_tasks.fail),
    ("POST", _ACTIVITY + "/acknowledge-cancellation", activity_tasks.acknowledge_cancellation),
    ("GET", _QUERY + "/status", queries.status),
    ("POST", _QUERY + "/complete", queries.complete),
    ("POST", _QUERY + "/fail", queries.fail),
    ("POST", _VALIDATION + "/approve", validations.approve),
    ("POST", _VALIDATION + "/reject", validations.reject),
    ("POST", "/api/worker/register", workers.register),
    ("POST", "/api/worker/heartbeat", workers.heartbeat),
    # Names of workers, queues, sessions and receivers may hold slashes, which arrive decoded.
    ("POST", "/api/worker/registrations/{worker_id:path}/deregister", workers.deregister_fenced),
    ("DELETE", "/api/worker/registrations/{worker_id:path}", workers.deregister),
    ("POST", "/api/worker/sessions", worker_sessions.create),
    ("POST", "/api/worker/sessions/{session_id:path}/heartbeat", worker_sessions.heartbeat),
    ("DELETE", "/api/worker/sessions/{session_id:path}", worker_sessions.close),
)

_RUN = "/api/workflows/{workflow_id}/runs/{run_id}"

CONTROL_ROUTES: tuple[tuple[str, str, str, Operation], ...] = (
    ("POST", "/api/workflows", "start", workflows.start),
    ("GET", "/api/workflows", "list", inspection.list_workflows),
    ("GET", "/api/workflows/{workflow_id}", "describe", inspection.describe),
    ("GET", "/api/workflows/{workflow_id}/runs", "list_runs", inspection.list_runs),
    ("GET", _RUN, "describe_run", inspection.describe),
    ("GET", _RUN + "/history", "history", inspection.history),
    ("GET", _RUN + "/history/export", "export_history", inspection.export),
    ("POST", "/api/workflows/{workflow_id}/cancel", "cancel", workflows.cancel),
    ("POST", "/api/workflows/{workflow_id}/terminate", "terminate", workflows.terminate),
    (
        "POST",
        "/api/workflows/{workflow_id}/request-cancellation",
        "request_cancellation",
        workflows.request_cancellation,
    ),
    ("POST", _RUN + "/request-cancellation", "request_cancellation", workflows.request_cancellation),
    ("POST", "/api/workflows/{workflow_id}/signal/{name:path}", "signal", commands.signal),
    ("POST", _RUN + "/signal/{name:path}", "signal", commands.signal),
    ("POST", "/api/workflows/{workflow_id}/query/{name:path}", "query", queries.ask),
    ("POST", "/api/workflows/{workflow_id}/update/{name:path}", "update", updates.update),
    ("GET", "/api/workers", "list_workers", fleet.list_workers),
    ("GET", "/api/workers/{worker_id:path}", "describe_worker", fleet.show_worker),
    ("DELETE", "/api/workers/{worker_id:path}", "deregister_worker", workers.remove),
    ("GET", "/api/task-queues", "list_task_queues", fleet.list_task_queues),
    ("GET", "/api/task-queues/{name:path}", "describe_task_queue", fleet.show_task_queue),
    ("GET", "/api/worker-sessions", "list_worker_sessions", worker_sessions.list_sessions),
    ("GET", "/api/worker-sessions/{session_id:path}", "describe_worker_session", worker_sessions.show_session),
)

# What takes the role `admin`; the rest of the control plane takes `operator`, too.
ADMIN_OPERATIONS = frozenset({"deregister_worker"})
