"""A scripted server at the transport boundary: honest by default, able to lie, refuse or fall silent per
operation.

It keeps one run and hands out its workflow tasks. Its time is trio's clock, so that tests run under a mock
clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import trio

from proctor.core.codec import envelope
from proctor.core.instants import format_instant
from proctor.errors import ServerUnreachable
from proctor.transport.calls import Answer, Call
from running.scripted_queries import ScriptedQueries
from running.scripted_run import Body

Lie = Callable[[Body], Any]

_FENCE = "0123456789abcdef0123456789abcdef"


class Silence(Exception):
    """Raised by a lie to stand for a connection that breaks before an answer."""


class Refusal(Exception):
    """Raised by a lie to stand for an error answer."""

    def __init__(self, status: int, body: Body) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class ScriptedServer(ScriptedQueries):
    """Satisfies `proctor.transport.calls.Transport`."""

    def __init__(self, *, lease: float = 10.0, latency: float = 0.01, worker_id: str = "w") -> None:
        super().__init__(lease=lease, worker_id=worker_id)
        self.latency = latency
        self.calls: list[tuple[str, Body, float]] = []
        self.spare: dict[str, float] = {}
        """By operation, how long before the end of the lease its last call would have given up."""
        self.lies: dict[str, list[Lie]] = defaultdict(list)
        self.always: dict[str, Lie] = {}
        self.capabilities: Body = {
            "supported_workflow_task_commands": ["upsert_memo"],
            "workflow_memo_updates": {"supported": True},
            "cooperative_cancellation": True,
            "prepared_local_activities": True,
            "local_activities": {"supported": True},
            "prepared_local_activity_cancellation_policies": ["try_cancel", "wait_cancellation_completed"],
            "long_poll_timeout": 30,
            "worker_deregistration_fencing": {
                "supported": True,
                "schema": "durable-workflow.v2.worker-deregistration.v1",
                "endpoint": "/worker/registrations/{workerId}/deregister",
                "receipt_retention_seconds": 600,
            },
        }
        self.registered = False
        self.delivery = trio.Event()
        self.closed: str | None = None
        self.run_closed = trio.Event()

    # -- the side of the test

    def lie(self, operation: str, *lies: Lie) -> None:
        """Let the next answers of `operation` be changed, one lie each."""
        self.lies[operation].extend(lies)

    def lie_always(self, operation: str, lie: Lie) -> None:
        self.always[operation] = lie

    def operations(self, *names: str) -> list[str]:
        """Give the operations called so far, or only those with these names."""
        return [name for name, _, _ in self.calls if not names or name in names]

    def bodies(self, operation: str) -> list[Body]:
        return [body for name, body, _ in self.calls if name == operation]

    def times(self, operation: str) -> list[float]:
        return [at for name, _, at in self.calls if name == operation]

    def event_types(self) -> list[str]:
        return [event["event_type"] for event in self.history]

    # -- the transport -----------------------------------------------------------------------------

    async def send(self, call: Call, *, within: float) -> Answer:
        started = trio.current_time()
        operation = _operation(call)
        self.calls.append((operation, dict(call.body or {}), started))
        if self.leased_until is not None:
            self.spare[operation] = (self.leased_until - self.now).total_seconds() - within
        with trio.move_on_after(within):
            await trio.sleep(self.latency / 2)
            status, body = await self._answer(operation, call)
            at = self.now
            await trio.sleep(self.latency / 2)
            return Answer(status, body, started, trio.current_time(), at)
        raise ServerUnreachable(f"no usable answer to {operation} within {within:.3g} s")

    async def _answer(self, operation: str, call: Call) -> tuple[int, Any]:
        handler = getattr(self, f"_do_{operation}")
        told = dict(call.body or {})
        if operation.startswith("query_") and operation != "query_poll":
            told |= {"task_id": call.path.split("/")[3], **call.query}
        status, body = await handler(told)
        lie = self.lies[operation].pop(0) if self.lies[operation] else self.always.get(operation)
        if lie is None:
            return status, body
        try:
            changed = lie(body)
            if hasattr(changed, "__await__"):
                changed = await changed
        except Refusal as exc:
            return exc.status, exc.body
        except Silence as exc:
            raise ServerUnreachable("the connection broke") from exc
        return status, body if changed is None else changed

    # -- worker plane ------------------------------------------------------------------------------

    async def _do_discovery(self, body: Body) -> tuple[int, Body]:
        return 200, {
            "control_plane": {
                "version": "2",
                "request_contract": {
                    "schema": "durable-workflow.v2.control-plane-request.contract",
                    "version": 1,
                },
            },
            "worker_protocol": {"version": "1.20", "server_capabilities": self.capabilities},
        }

    async def _do_register(self, body: Body) -> tuple[int, Body]:
        self.registered = True
        return 201, {
            "worker_id": body["worker_id"],
            "registered": True,
            "registration_token": _FENCE,
            "heartbeat_interval_seconds": 10,
        }

    async def _do_worker_heartbeat(self, body: Body) -> tuple[int, Body]:
        if not self.registered:
            return 404, {"reason": "worker_not_registered"}
        return 200, {"worker_id": body["worker_id"], "acknowledged": True, "heartbeat_interval_seconds": 10}

    async def _do_deregister_by_id(self, body: Body) -> tuple[int, Body]:
        return 200, {"worker_id": self.worker_id, "outcome": "deregistered", "recovered_workflow_task_count": 0}

    async def _do_deregister(self, body: Body) -> tuple[int, Body]:
        self.registered = False
        return 200, {
            "worker_id": self.worker_id,
            "registration_token": body["registration_token"],
            "outcome": "deregistered",
            "recovered_workflow_task_count": 0,
        }

    async def _do_poll(self, body: Body) -> tuple[int, Body]:
        with trio.move_on_after(body["timeout_seconds"]):
            lying = self.lies["poll"] or "poll" in self.always
            while not (self.task_ready or lying):
                self.something_ready = trio.Event()
                await self.something_ready.wait()
        if not self.task_ready:
            return 200, {"task": None, "poll_status": "timeout"}
        self.task_ready = False
        return 200, {"task": self.lease_task(), "poll_status": "leased"}

    def lease_task(self) -> Body:
        self.epoch += 1
        self._renew()
        task = {
            "task_kind": "workflow",
            "task_id": self.task_id,
            "workflow_id": "wf-1",
            "run_id": "R",
            "workflow_task_attempt": self.epoch,
            "workflow_type": "wf",
            "payload_codec": "avro",
            "arguments": envelope(self.arguments),
            "lease_owner": self.worker_id,
            "history_events": list(self.history),
            "next_history_page_token": None,
            "workflow_update_id": None,
            "workflow_command_id": None,
        }
        if self.cancellation is not None:
            task["cancellation_request"] = self.cancellation
        return task

    async def _do_history(self, body: Body) -> tuple[int, Body]:
        return 200, {
            "task_id": self.task_id,
            "workflow_task_attempt": self.epoch,
            "history_events": list(self.history),
            "next_history_page_token": None,
        }

    async def _do_claim_heartbeat(self, body: Body) -> tuple[int, Body]:
        self._renew()
        reply = {
            "task_id": self.task_id,
            "workflow_task_attempt": self.epoch,
            "lease_owner": self.worker_id,
            "renewed": True,
            "lease_expires_at": format_instant(self.leased_until or self.now),
            "reason": None,
        }
        if self.cancellation is not None:
            reply["cancellation_request"] = self.cancellation
        return 200, reply

    async def _do_complete(self, body: Body) -> tuple[int, Body]:
        for command in body["commands"]:
            if command["type"] in ("complete_workflow", "fail_workflow"):
                cancelled = self.cancellation is not None
                self.closed = "cancelled" if cancelled else command["type"]
                self.run_closed.set()
        return 200, {"outcome": "completed", "recorded": True, "reason": None}

    async def _do_fail(self, body: Body) -> tuple[int, Body]:
        return 200, {"outcome": "failed", "recorded": True, "reason": None}

    async def _do_deliver(self, body: Body) -> tuple[int, Body]:
        self.delivery.set()
        self._record(
            "CooperativeCancellationDelivered",
            {
                "workflow_command_id": "Q",
                "workflow_run_id": "R",
                "sequence": body["sequence"],
                "call_kind": body["call_kind"],
                "cancellation": self.context(),
            },
        )
        echoed = {key: body[key] for key in ("request_id", "sequence", "call_kind", "sequence_span")}
        return 200, {
            "delivered": True,
            "task_id": self.task_id,
            "workflow_run_id": "R",
            "reason": None,
            "operation_sequence": None,
            "operation_sequence_span": 1,
            **echoed,
        }


_PATHS = (
    (r"/cluster/info", "discovery"),
    (r"/worker/register", "register"),
    (r"/worker/heartbeat", "worker_heartbeat"),
    (r"/worker/registrations/[^/]+/deregister", "deregister"),
    (r"/worker/registrations/[^/]+", "deregister_by_id"),
    (r"/worker/query-tasks/poll", "query_poll"),
    (r"/worker/query-tasks/[^/]+/status", "query_status"),
    (r"/worker/query-tasks/[^/]+/complete", "query_complete"),
    (r"/worker/query-tasks/[^/]+/fail", "query_fail"),
    (r"/worker/workflow-tasks/poll", "poll"),
    (r"/worker/update-validation-tasks/[^/]+/(approve|reject)", ""),
    (r"/worker/workflow-tasks/[^/]+/history", "history"),
    (r"/worker/workflow-tasks/[^/]+/heartbeat", "claim_heartbeat"),
    (r"/worker/workflow-tasks/[^/]+/complete", "complete"),
    (r"/worker/workflow-tasks/[^/]+/fail", "fail"),
    (r"/worker/workflow-tasks/[^/]+/deliver-cancellation", "deliver"),
    (r"/worker/workflow-tasks/[^/]+/local-activities/checkpoint-group", "checkpoint_group"),
    (r"/worker/workflow-tasks/[^/]+/local-activities/(checkpoint|prepare|recover)", ""),
    (r"/worker/workflow-tasks/[^/]+/local-activities/[^/]+/(control|heartbeat|outcome)", ""),
    (r"/worker/workflow-tasks/[^/]+/local-activities/[^/]+/acknowledge-cancellation", "acknowledge"),
)


def _operation(call: Call) -> str:
    for pattern, name in _PATHS:
        match = re.fullmatch(pattern, call.path)
        if match is not None:
            return name or match.group(1)
    raise AssertionError(f"the worker called an unknown path: {call.path}")
