"""A server small enough to be steered by Hypothesis: it records commands, and ends what is open as it is told.

It keeps to what events.md says an honest server records, so that the histories it makes are valid; it knows nothing of
leases, time or the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from proctor.core import codec

STARTED_AT = "2026-01-02T03:04:05.678900Z"
Choose = Callable[[list[Any]], Any]
_GROUP = ("parallel_group_", "selection_")


@dataclass
class Open:
    """Something that has begun and not ended; `about` is what each of its events repeats."""

    kind: str
    sequence: int
    about: dict[str, Any]
    identity: str
    timeout: int | None = None


@dataclass
class SimulatedServer:
    """One run: its events, what is open, and which selections wait for a winner."""

    choose: Choose
    reopens: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    open: dict[int, Open] = field(default_factory=dict)
    next_sequence: int = 1
    signalled: bool = False
    messages: int = 0
    selections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ends: dict[int, tuple[str, str]] = field(default_factory=dict)
    resolved: set[str] = field(default_factory=set)
    requested: bool = False
    closed: bool = False

    def start(self, workflow_type: str) -> None:
        self.add("StartAccepted", outcome="started_new")
        self.add("WorkflowStarted", workflow_type=workflow_type)

    def add(self, event_type: str, **payload: Any) -> str:
        position = len(self.events) + 1
        event = {
            "id": f"event-{position}",
            "sequence": position,
            "event_type": event_type,
            "payload": payload,
            "recorded_at": f"2026-01-02T03:{4 + position // 60:02}:{position % 60:02}.000000Z",
        }
        if event_type == "WorkflowStarted":
            event["recorded_at"] = STARTED_AT
        if event_type.startswith("Cooperative"):
            event["workflow_command_id"] = payload["workflow_command_id"]
        self.events.append(event)
        return f"event-{position}"

    # -- what a completion records ------------------------------------------------------------------

    def complete(self, commands: list[dict[str, Any]]) -> None:
        waits = [command for command in commands if command["type"] == "open_condition_wait" and not group_of(command)]
        self._settle_wait(waits[0] if waits else None)
        for command in commands:
            record = getattr(self, "_" + command["type"], None)
            if record is not None:
                record(command)
            elif command["type"] in ("complete_workflow", "fail_workflow", "continue_as_new"):
                self.closed = True
                self.add({"c": "WorkflowCompleted", "f": "WorkflowFailed"}.get(command["type"][0], "WorkflowCompleted"))

    def _settle_wait(self, again: dict[str, Any] | None) -> None:
        """A wait the code has passed is satisfied; one it asks for again stays, or is opened anew."""
        for wait in [item for item in self.open.values() if item.kind == "condition" and not group_of(item.about)]:
            same = again is not None and again.get("condition_key") == wait.about.get("condition_key")
            same = (
                same
                and again is not None
                and (again["condition_definition_fingerprint"] == wait.about["condition_definition_fingerprint"])
            )
            if same and not (self.reopens and self.signalled):
                assert again is not None
                again["kept"] = True
            else:
                self._end(wait, "ConditionWaitSatisfied")
        self.signalled = False

    def _begin(self, kind: str, event_type: str, command: Mapping[str, Any], **about: Any) -> None:
        group = group_of(command)
        base = group.get("parallel_group_path", [{}])[0].get("parallel_group_base_sequence")
        if base is not None and base + group["parallel_group_path"][0]["parallel_group_index"] < self.next_sequence:
            return  # the member is there already: the group was submitted again
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        names = {"activity": "activity_execution_id", "timer": "timer_id", "child": "child_workflow_run_id"}
        identity = f"{kind}-{sequence}"
        about |= {"sequence": sequence, names.get(kind, "condition_wait_id"): identity} | group
        self.open[sequence] = Open(kind, sequence, about, identity, command.get("timeout_seconds"))
        self.add(event_type, **about)
        for entry in group.get("parallel_group_path", [])[:1]:
            if entry.get("parallel_group_mode") == "select":
                members = self.selections.setdefault(entry["parallel_group_id"], [])
                members.append(entry | {"sequence": sequence, "identity": identity})

    def _schedule_activity(self, command: dict[str, Any]) -> None:
        policy = command.get("cancellation_policy")
        snapshot = {} if policy is None else {"activity": {"cancellation_policy": policy}}
        self._begin("activity", "ActivityScheduled", command, activity_type=command["activity_type"], **snapshot)

    def _start_timer(self, command: dict[str, Any]) -> None:
        self._begin("timer", "TimerScheduled", command, delay_seconds=command["delay_seconds"])

    def _start_child_workflow(self, command: dict[str, Any]) -> None:
        policies = {key: command[key] for key in ("parent_close_policy", "cancellation_policy") if key in command}
        self._begin(
            "child", "ChildWorkflowScheduled", command, child_workflow_type=command["workflow_type"], **policies
        )

    def _open_condition_wait(self, command: dict[str, Any]) -> None:
        if command.pop("kept", False):
            return
        about = {key: value for key, value in command.items() if key.startswith("condition_")}
        timeout = command.get("timeout_seconds")
        self._begin("condition", "ConditionWaitOpened", command, timeout_seconds=timeout, **about)
        wait = self.open[self.next_sequence - 1]
        if timeout is not None:
            self.add(
                "TimerScheduled",
                timer_id=f"timeout-{wait.sequence}",
                delay_seconds=timeout,
                timer_kind="condition_timeout",
                sequence=wait.sequence,
                condition_wait_id=wait.identity,
            )

    def _start_service_operation(self, command: dict[str, Any]) -> None:
        facts = {key: command[key] for key in ("endpoint_name", "service_name", "operation_name")}
        facts |= {"operation_mode": command["mode_override"], "wait_for": command["wait_for"]}
        self._begin("service", "ServiceCallStarted", command, service_call={"id": "call-1"} | facts, **facts)
        if command["mode_override"] == "async":
            self.open.pop(self.next_sequence - 1)

    def _mark(self, event_type: str, **payload: Any) -> None:
        self.add(event_type, sequence=self.next_sequence, **payload)
        self.next_sequence += 1

    def _record_side_effect(self, command: dict[str, Any]) -> None:
        self._mark("SideEffectRecorded", result=codec.encode(command["result"]))

    def _record_version_marker(self, command: dict[str, Any]) -> None:
        self._mark("VersionMarkerRecorded", **{key: value for key, value in command.items() if key != "type"})

    def _upsert_memo(self, command: dict[str, Any]) -> None:
        entries = codec.envelope(command["entries"])
        self._mark("MemoUpserted", entries=entries, merged=entries)

    def _upsert_search_attributes(self, command: dict[str, Any]) -> None:
        self._mark("SearchAttributesUpserted", attributes=command["attributes"])

    def _record_local_activity(self, command: dict[str, Any]) -> None:
        about = {
            "activity_type": command["activity_type"],
            "execution_mode": "local",
            "local_activity": True,
            "activity_execution_id": f"local-{self.next_sequence}",
            "sequence": self.next_sequence,
        }
        self.next_sequence += 1
        self.add("ActivityScheduled", **about)
        self.add("ActivityStarted", attempt_number=1, activity_attempt_id=f"attempt-{about['sequence']}", **about)
        if self.choose([True, True, False]):
            self.add("ActivityCompleted", result=codec.envelope("local"), payload_codec="avro", **about)
        else:
            self.add("ActivityFailed", message="local failure", exception_type="OSError", **about)

    def _cancel_selection_operation(self, command: dict[str, Any]) -> None:
        if command["member_base_sequence"] in self.open:
            fields = {key: value for key, value in command.items() if key != "type"}
            self.add("SelectionOperationCancelled", **fields)
            del self.open[command["member_base_sequence"]]

    # -- what the world does ------------------------------------------------------------------------

    def advance(self, signals: Mapping[str, Any], updates: Mapping[str, Any]) -> None:
        """Let one thing happen, of those that can."""
        can: list[Callable[[], None]] = [partial(self._finish, item) for item in self.open.values()]
        can += [partial(self._signal, name, arguments) for name, arguments in signals.items()]
        can += [partial(self._update, name, arguments) for name, arguments in updates.items()]
        if can:
            self.choose(can)()

    def message(self) -> None:
        self.messages += 1
        body = {
            "schema": "durable-workflow.v2.message-stream.message",
            "stream_name": "orders",
            "message_id": f"m-{self.messages}",
            "position": self.messages,
            "payload_envelope": codec.envelope([self.messages]),
        }
        self._signal("__durable_workflow_message_stream", [body])

    def _signal(self, name: str, arguments: Any) -> None:
        self.signalled = True
        self.add("SignalReceived", signal_name=name, arguments=codec.envelope(arguments), payload_codec="avro")

    def _update(self, name: str, arguments: Any) -> None:
        update = {"update_id": f"u-{len(self.events)}", "update_name": name, "arguments": codec.envelope(arguments)}
        self.add("UpdateAccepted", **update)
        self.add("UpdateApplied", sequence=self.next_sequence, **update)
        self.add("UpdateCompleted", sequence=self.next_sequence, update_id=update["update_id"])
        self.signalled = True

    def _finish(self, item: Open) -> None:
        failed = self.choose([False, False, True])
        if item.kind == "activity":
            if self.choose([True, False]):
                self.add("ActivityStarted", attempt_number=1, **item.about)
            if failed:
                kind = self.choose(["ActivityFailed", "ActivityTimedOut", "ActivityCancelled"])
                told = {"message": f"{kind} it did", "exception_type": "OSError", "failure_category": "activity"}
                self._end(item, kind, **(told if kind != "ActivityCancelled" else {}))
            else:
                self._end(item, "ActivityCompleted", result=codec.envelope(f"r{item.sequence}"), payload_codec="avro")
        elif item.kind == "timer":
            self._end(item, "TimerFired")
        elif item.kind == "child":
            if failed:
                kind = self.choose(["ChildRunFailed", "ChildRunCancelled", "ChildRunTerminated"])
                self._end(item, kind, **({"message": "no", "exception_class": "E"} if kind == "ChildRunFailed" else {}))
            else:
                self._end(item, "ChildRunCompleted", result=codec.encode(["child", item.sequence]))
        elif item.kind == "service":
            snapshot = {"service_call": item.about["service_call"] | {"status": "failed" if failed else "completed"}}
            response = {} if failed else {"response_payload": codec.envelope(7)}
            about = item.about | snapshot
            self.add("ServiceCallFailed" if failed else "ServiceCallCompleted", **about, **response)
            del self.open[item.sequence]
        elif item.timeout is not None:
            self._end(item, self.choose(["ConditionWaitTimedOut", "TimerFired"]))

    def _end(self, item: Open, event_type: str, **payload: Any) -> None:
        about = dict(item.about)
        if event_type == "TimerFired" and item.kind == "condition":
            about |= {"timer_kind": "condition_timeout"}
        event_id = self.add(event_type, **about, **payload)
        del self.open[item.sequence]
        self.ends[item.sequence] = (event_id, event_type)
        for group_id, members in self.selections.items():
            if group_id not in self.resolved and any(member["sequence"] == item.sequence for member in members):
                self._resolve(group_id, members, item.sequence)

    def _resolve(self, group_id: str, members: list[dict[str, Any]], sequence: int) -> None:
        (member,) = [entry for entry in members if entry["sequence"] == sequence]
        base, size = member["selection_member_base_sequence"], member["selection_member_size"]
        event_id, event_type = self.ends[sequence]
        failed = event_type in ("ActivityFailed", "ActivityTimedOut", "ActivityCancelled") or (
            event_type.startswith("ChildRun") and event_type != "ChildRunCompleted"
        )
        if not failed and any(number not in self.ends for number in range(base, base + size)):
            return
        self.resolved.add(group_id)
        kind = member["selection_member_kind"]
        self.add(
            "SelectionResolved",
            selection_group_id=group_id,
            selection_group_base_sequence=member["parallel_group_base_sequence"],
            selection_group_size=member["parallel_group_size"],
            member_key=member["selection_member_key"],
            member_index=member["selection_member_index"],
            member_base_sequence=base,
            member_size=size,
            operation_kind=kind,
            operation_identity=f"group:{base}:{size}" if kind == "group" else member["identity"],
            outcome="failed" if failed else "completed",
            resolution_event_id=event_id,
            resolution_event_type=event_type,
        )

    # -- cancellation -------------------------------------------------------------------------------

    def request_cancellation(self) -> None:
        self.requested = True
        at = f"2026-01-02T03:{4 + len(self.events) // 60:02}:{len(self.events) % 60:02}.000000Z"
        request = {"request_id": "Q", "workflow_instance_id": "workflow-1", "workflow_run_id": "run-1"}
        self.cancellation = {
            "workflow_command_id": "Q",
            "workflow_run_id": "run-1",
            "cleanup_deadline_at": "2026-01-02T03:14:05.000000Z",
            "reason": "enough",
            "cancellation": {
                "schema": "durable-workflow.cancellation-context/v1",
                "request_id": "Q",
                "root_request_id": "Q",
                "root_workflow_instance_id": "workflow-1",
                "root_workflow_run_id": "run-1",
                "parent_request_id": None,
                "reason": "enough",
                "requester": {"type": "operator"},
                "source": "control_plane",
                "requested_at": at,
                "cleanup_deadline_at": "2026-01-02T03:14:05.000000Z",
                "lineage": [request],
            },
        }
        self.add("CooperativeCancellationRequested", **self.cancellation)

    def deliver(self, boundary: Mapping[str, Any]) -> None:
        """Record a delivery; what it interrupts is over."""
        first = boundary.get("operation_sequence") or boundary["sequence"]
        span = boundary.get("operation_sequence_span") or boundary.get("sequence_span", 1)
        for sequence in range(first, first + span):
            item = self.open.pop(sequence, None)
            if item is not None and item.kind == "activity":
                self.add("ActivityCancelled", **item.about)
        kept = ("workflow_command_id", "workflow_run_id", "cancellation")
        self.add("CooperativeCancellationDelivered", **{key: self.cancellation[key] for key in kept}, **boundary)
        end = boundary["sequence"] + boundary.get("sequence_span", 1)
        self.next_sequence = max(self.next_sequence, end)


def group_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Give the group fields of a command or event."""
    return {key: value for key, value in fields.items() if key.startswith(_GROUP)}
