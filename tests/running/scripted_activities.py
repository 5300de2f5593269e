"""The honest answers of the scripted server to the prepared local activity operations."""

from __future__ import annotations

from datetime import timedelta

from proctor.core.instants import format_instant
from running.scripted_run import Body, ScriptedRun


class ScriptedActivities(ScriptedRun):
    """One method per operation; each gives status and body."""

    async def _do_checkpoint(self, body: Body) -> tuple[int, Body]:
        for offset, command in enumerate(body["commands"]):
            assert command["type"] == "record_side_effect", command
            payload = {"sequence": body["start_sequence"] + offset, "result": command["result"]}
            self._record("SideEffectRecorded", payload)
        return 200, {
            "checkpointed": True,
            "duplicate": False,
            "reason": None,
            "checkpoint_id": body["checkpoint_id"],
            "task_id": self.task_id,
            "workflow_run_id": "R",
            "workflow_task_attempt": self.epoch,
            "lease_owner": self.worker_id,
            "start_sequence": body["start_sequence"],
            "next_sequence": body["start_sequence"] + len(body["commands"]),
            "history_refresh_page_token": "MA==",
        }

    async def _do_checkpoint_group(self, body: Body) -> tuple[int, Body]:
        """Admit a group of local members and timers; the timers fire at once."""
        _, receipt = await self._do_checkpoint({**body, "commands": []})
        members = []
        for sequence, command in enumerate(body["commands"], start=body["start_sequence"]):
            path = {"parallel_group_path": command["parallel_group_path"]}
            if command["type"] == "start_timer":
                timer = {"sequence": sequence, "timer_id": f"TM{sequence}", "delay_seconds": command["delay_seconds"]}
                self._record("TimerScheduled", {**timer, **path})
                self._record("TimerFired", {**timer, **path})
                continue
            self.admitted[sequence] = self.execution_id = f"E{sequence}"
            members.append({"sequence": sequence, "activity_execution_id": self.execution_id})
            self._record_activity("ActivityScheduled", sequence, command["activity_type"], attempt_id=None, **path)
        next_sequence = body["start_sequence"] + len(body["commands"])
        return 200, {**receipt, "next_sequence": next_sequence, "local_activities": members}

    async def _do_prepare(self, body: Body) -> tuple[int, Body]:
        descriptor = body["descriptor"]
        sequence = body["sequence"]
        self.attempts += 1
        self.execution_id = self.admitted.get(sequence, "E")
        if sequence in self.admitted:
            self.execution_started = self.execution_started or self.now
        elif self.execution_started is None:
            self.execution_started = self.now
            policy = {key: descriptor[key] for key in ("cancellation_policy",) if key in descriptor}
            self._record_activity("ActivityScheduled", sequence, descriptor["activity_type"], attempt_id=None, **policy)
        total = descriptor.get("schedule_to_close_timeout")
        first = self.execution_started
        self.attempt = {
            "id": f"A{self.attempts}",
            "nonce": body["worker_attempt_id"],
            "sequence": sequence,
            "type": descriptor["activity_type"],
            "retry": descriptor.get("retry_policy") or {},
            "number": self.attempts,
            "heartbeat_timeout": descriptor.get("heartbeat_timeout"),
            "start_to_close": self._after(descriptor.get("start_to_close_timeout")),
            "schedule_to_close": None if total is None else first + timedelta(seconds=total),
            "heartbeat": self._after(descriptor.get("heartbeat_timeout")),
        }
        self._record_activity("ActivityStarted", sequence, descriptor["activity_type"])
        return 200, {
            "prepared": True,
            "duplicate": False,
            "reason": None,
            "activity_execution_id": self.execution_id,
            "activity_attempt_id": self.attempt["id"],
            "worker_attempt_id": body["worker_attempt_id"],
            "attempt_number": self.attempts,
            "workflow_task_id": self.task_id,
            "workflow_task_attempt": self.epoch,
            "lease_owner": self.worker_id,
            "lease_expires_at": format_instant(self.leased_until or self.now),
            "cancellation_cleanup": None,
            "server_time": self.stamp(0),
            "history_refresh_page_token": "MA==",
            **self._deadlines(),
        }

    async def _do_control(self, body: Body) -> tuple[int, Body]:
        reason = self._stop_reason()
        if reason is None:
            self._renew()
        return self._standing(reason, renewed=reason is None, recorded=False)

    async def _do_heartbeat(self, body: Body) -> tuple[int, Body]:
        assert self.attempt is not None
        reason = self._stop_reason()
        if reason is None:
            self.attempt["heartbeat"] = self._after(self.attempt["heartbeat_timeout"])
            extra = {"progress": body["progress"]}
            self._record_activity("ActivityHeartbeatRecorded", self.attempt["sequence"], self.attempt["type"], **extra)
        return self._standing(reason, renewed=False, recorded=reason is None)

    def _standing(self, reason: str | None, *, renewed: bool, recorded: bool) -> tuple[int, Body]:
        assert self.attempt is not None
        lease = format_instant(self.leased_until or self.now)
        body = {
            "active": reason is None,
            "renewed": renewed,
            "stop_required": reason is not None,
            "reason": reason,
            "activity_execution_id": self.execution_id,
            "activity_attempt_id": self.attempt["id"],
            "workflow_task_id": self.task_id,
            "workflow_task_attempt": self.epoch,
            "lease_owner": self.worker_id,
            "lease_expires_at": lease,
            "workflow_lease_expires_at": lease,
            "cancellation_cleanup": None,
            "heartbeat_recorded": recorded,
            "heartbeat_history_event_id": f"V{len(self.history)}" if recorded else None,
            "server_time": self.stamp(0),
            "history_refresh_page_token": "MA==",
            **self._deadlines(),
        }
        if reason == "cancellation_requested":
            return 200, {
                **body,
                "fenced": True,
                "cancellation_history_event_id": "VC",
                "cancellation_request": self.context(),
            }
        return (200 if reason is None else 409), body

    async def _do_outcome(self, body: Body) -> tuple[int, Body]:
        assert self.attempt is not None
        report = body["report"]
        attempt = self.attempt
        if self.cancellation is not None:
            return 409, {"recorded": False, "fenced": True, "reason": "cancellation_requested"}
        if self._lease_over():
            return 409, {"recorded": False, "reason": "workflow_claim_expired"}
        due = self._due()
        if report["outcome"] == "timed_out" and due is None:
            return 409, {"recorded": False, "reason": "local_activity_timeout_not_due"}
        kind = {"completed": "ActivityCompleted", "failed": "ActivityFailed"}.get(report["outcome"], "")
        if due is not None:
            kind = "ActivityTimedOut"
        left = attempt["number"] < (attempt["retry"].get("max_attempts") or 1)
        if kind == "ActivityFailed" and left and not report.get("non_retryable"):
            kind = "ActivityRetryScheduled"
        if kind == "ActivityTimedOut" and left and due != "schedule_to_close":
            kind = "ActivityRetryScheduled"
        details: Body = {"timeout_kind": due} if due is not None else {}
        if kind == "ActivityCompleted":
            details = {"result": report["result"], "payload_codec": "avro"}
        if kind == "ActivityFailed":
            details = {"message": report["message"], "exception_type": report["exception_type"]}
        event = self._record_activity(kind, attempt["sequence"], attempt["type"], **details)
        released = kind == "ActivityRetryScheduled"
        created = []
        owner = {
            "workflow_task_id": self.task_id,
            "workflow_task_attempt": self.epoch,
            "lease_owner": self.worker_id,
        }
        if released:
            self.task_number += 1
            self.epoch = 0
            created = [self.task_id]
            self.make_ready()
        return 200, {
            "recorded": True,
            "duplicate": False,
            "reason": None,
            "event_id": event["id"],
            "event_type": kind,
            "workflow_run_id": "R",
            "activity_execution_id": self.execution_id,
            "activity_attempt_id": attempt["id"],
            "worker_attempt_id": attempt["nonce"],
            "recorded_at": self.stamp(0),
            "claim_released": released,
            "created_task_ids": created,
            "history_refresh_page_token": "MA==",
            **owner,
        }

    async def _do_acknowledge(self, body: Body) -> tuple[int, Body]:
        event = self._record("ActivityCancellationAcknowledged", {"sequence": 1})
        return 200, {"acknowledged": True, "duplicate": False, "reason": None, "history_event_id": event["id"]}

    async def _do_recover(self, body: Body) -> tuple[int, Body]:
        kind = "ActivityFailed"
        event = self._record_activity(
            kind,
            body["sequence"],
            body["descriptor"]["activity_type"],
            attempt_id="A-old",
            message="interrupted",
            exception_type="Interrupted",
            local_recovery={
                "workflow_task_id": self.task_id,
                "workflow_task_attempt": self.epoch,
                "lease_owner": self.worker_id,
                "callback_stop_state": "unknown",
            },
        )
        return 200, {
            "recovered": True,
            "duplicate": False,
            "reason": None,
            "event_id": event["id"],
            "event_type": kind,
            "activity_execution_id": self.execution_id,
            "activity_attempt_id": "A-old",
            "workflow_task_id": self.task_id,
            "recorded_at": self.stamp(0),
            "callback_stop_state": "unknown",
            "claim_released": False,
            "created_task_ids": [],
            "history_refresh_page_token": "MA==",
        }
