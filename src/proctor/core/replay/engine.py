"""The replay itself: matches each authored command with the recorded steps and concludes one Decision.

Steps are matched in recorded order and the code is resumed at once with every recorded answer (replay.md §3), until
it ends, contradicts its history, or asks for a local activity that history does not answer.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import Any, Final, NoReturn

from proctor.core import codec
from proctor.core.replay.body import Body, Progress, Raised, Returned, open_body
from proctor.core.replay.commands import CancellationPolicy, Command, LocalActivity, SideEffect, VersionDecision
from proctor.core.replay.context import WorkflowContext
from proctor.core.replay.decision import Commands, Decision, LocalCall, ReplayTask, WorkflowDefinition
from proctor.core.replay.failures import WorkflowCancelled, activity_failure, fail_workflow
from proctor.core.replay.history import (
    SIDE_EFFECT,
    VERSION_MARKER,
    ActivityStep,
    History,
    Step,
    read_history,
)
from proctor.errors import NonDeterminismError, PayloadError, WorkflowCodeBroken

MAX_COMMANDS: Final = 1000
"""Most commands of one completion (commands.md §3.3)."""
_MARKER_NUMBERS: Final = ("version", "min_supported", "max_supported")


def replay(definition: WorkflowDefinition, task: ReplayTask) -> Decision:
    """Run the workflow code of `task` against its history and say what follows.

    Raises, all meaning that the workflow task fails and the run stays open: NonDeterminismError, HistoryError,
    PayloadError, EntryArgumentsMismatch and WorkflowCodeBroken. KeyboardInterrupt passes through.
    """
    if task.payload_codec != codec.CODEC:
        raise PayloadError("unsupported_payload_codec", "the workflow task does not name the payload codec 'avro'")
    history = read_history(task.history)
    arguments = codec.decode_arguments(task.arguments, task.payload_codec)
    return _Replay(definition, task, history, arguments).run()


class _Replay:
    def __init__(
        self, definition: WorkflowDefinition, task: ReplayTask, history: History, arguments: list[Any]
    ) -> None:
        self._name = definition.name
        self._history = history
        self._strict = history.strict or task.prepared
        self._steps: deque[Step] = deque(history.steps)
        self._delivery = history.delivery
        self._position = 1  # durable sequence of the next command
        self._prefix: list[dict[str, Any]] = []
        self._versions: dict[str, int] = {}
        self._closing = False
        self._context = WorkflowContext(
            workflow_id=task.workflow_id,
            run_id=task.run_id,
            workflow_type=task.workflow_type,
            started_at=history.started_at,
            is_live=lambda: not self._steps and self._delivery is None and not self._closing,
        )
        self._body: Body = open_body(definition, self._context, arguments)

    def run(self) -> Decision:
        try:
            return self._drive(self._body.start())
        finally:
            self._closing = True
            self._body.close()

    def _drive(self, progress: Progress) -> Decision:
        while True:
            if self._context._refusal is not None:
                # Raised inside the code, where an `except Exception` may have hidden it.
                raise self._context._refusal
            if isinstance(progress, Returned):
                return self._complete(progress.value)
            if isinstance(progress, Raised):
                return self._fail(progress.exception)
            command = progress.command
            if not isinstance(command, Command):
                return self._fail(
                    TypeError(
                        f"workflow yielded unsupported command: {type(command).__qualname__}; await ctx calls only"
                    )
                )
            self._context._unclaimed.pop(id(command), None)
            if isinstance(command, LocalActivity):
                answer = self._answer_local(command)
                if isinstance(answer, LocalCall):
                    return answer
                progress = answer
            elif isinstance(command, SideEffect):
                progress = self._answer_side_effect(command)
            elif isinstance(command, VersionDecision):
                progress = self._answer_version(command)
            else:
                return self._fail(TypeError(f"workflow yielded unsupported command: {command}"))

    def _complete(self, value: object) -> Commands:
        self._require_end("the end of the workflow")
        for command in self._context._unclaimed.values():
            return self._fail(
                TypeError(f"the workflow ended without its {command}: write `await` or `yield` before the ctx call")
            )
        return Commands((*self._prefix, {"type": "complete_workflow", "result": _envelope(value)}))

    def _fail(self, exc: BaseException) -> Commands:
        # As the official SDK does, a failure is taken at its word even when recorded steps remain.
        return Commands((*self._prefix, fail_workflow(exc)))

    def _answer_local(self, command: LocalActivity) -> Progress | LocalCall:
        if self._delivery is not None and self._delivery.sequence == self._position:
            return self._cancel(command, "local_activity")
        step = self._peek()
        if step is None:
            self._require_end(f"{command} without an outcome")
            return self._local_call(command, None)
        if not isinstance(step, ActivityStep):
            self._contradict(command, step)
        self._check_activity(command, step)
        if step.end_type is None:
            self._check_sequence(command, step)
            if len(self._steps) > 1 or self._delivery is not None:
                self._steps.popleft()
                self._require_end(f"{command} without an outcome")
            return self._local_call(command, step)
        self._take(command, step)
        if step.end_type == "ActivityCompleted":
            result = step.end.get("result", step.end.get("output"))
            return self._body.send(_recorded_value(step, result))
        return self._body.throw(
            activity_failure(step.end_type, step.end, activity_type=command.activity_type, sequence=step.sequence)
        )

    def _local_call(self, command: LocalActivity, step: ActivityStep | None) -> LocalCall:
        arguments = _envelope(command.arguments)
        descriptor: dict[str, Any] = {
            "type": "record_local_activity",
            "activity_type": command.activity_type,
            "execution_mode": "local",
            "arguments": arguments,
            "payload_codec": codec.CODEC,
        }
        options = {
            "retry_policy": None if command.retry_policy is None else command.retry_policy.to_wire(),
            "start_to_close_timeout": command.start_to_close_timeout,
            "schedule_to_close_timeout": command.schedule_to_close_timeout,
            "heartbeat_timeout": command.heartbeat_timeout,
            "cancellation_policy": None if command.cancellation_policy is None else str(command.cancellation_policy),
        }
        descriptor.update({key: value for key, value in options.items() if value is not None})
        sequence = self._position
        if step is not None and step.sequence is not None:
            sequence = step.sequence
        return LocalCall(
            prefix=tuple(self._prefix),
            prefix_start=sequence - len(self._prefix),
            sequence=sequence,
            activity_type=command.activity_type,
            descriptor=descriptor,
            arguments=codec.decode_arguments(arguments, None),
            interrupted=None if step is None else step.interrupted,
            last_heartbeat=None if step is None else step.last_heartbeat,
            attempts_started=0 if step is None else step.attempts_started,
            start_to_close_timeout=command.start_to_close_timeout,
            schedule_to_close_timeout=command.schedule_to_close_timeout,
            heartbeat_timeout=command.heartbeat_timeout,
        )

    def _answer_side_effect(self, command: SideEffect[Any]) -> Progress:
        step = self._peek()
        if step is not None:
            if step.shape != SIDE_EFFECT:
                self._contradict(command, step)
            self._take(command, step)
            return self._body.send(_recorded_value(step, step.details.get("result")))
        self._require_end(str(command))
        outcome = self._body.evaluate(command.function)
        if isinstance(outcome, Raised):
            return self._body.throw(outcome.exception)
        assert isinstance(outcome, Returned)
        if inspect.iscoroutine(outcome.value):
            outcome.value.close()
            return self._body.throw(TypeError("a side effect is a plain function, this one is async"))
        blob = _encode(outcome.value)
        self._author({"type": "record_side_effect", "result": blob})
        # What the code sees now must be what it will see in every later replay.
        return self._body.send(codec.decode(blob))

    def _answer_version(self, command: VersionDecision[Any]) -> Progress:
        version = self._versions.get(command.change_id)
        if version is None:
            version = self._decide_version(command)
        if not command.min_supported <= version <= command.max_supported:
            self._refuse(
                f"version {command.min_supported} to {command.max_supported} of change {command.change_id!r}",
                f"version {version}",
            )
        self._versions[command.change_id] = version
        return self._body.send(command.convert(version))

    def _decide_version(self, command: VersionDecision[Any]) -> int:
        step = self._peek()
        if step is not None and step.shape == VERSION_MARKER:
            change_id, version = self._read_marker(step)
            if change_id != command.change_id:
                self._refuse(str(command), f"version marker {change_id!r}")
            self._take(command, step)
            return version
        if step is not None or self._history.closed or self._delivery is not None:
            return -1  # the run passed this place before the change was in the code
        self._author(
            {
                "type": "record_version_marker",
                "change_id": command.change_id,
                "version": command.max_supported,
                "min_supported": command.min_supported,
                "max_supported": command.max_supported,
            }
        )
        return command.max_supported

    def _read_marker(self, step: Step) -> tuple[str, int]:
        change_id = step.details.get("change_id")
        version, low, high = (_number(step.details.get(key)) for key in _MARKER_NUMBERS)
        if not isinstance(change_id, str) or version is None or low is None or high is None:
            self._refuse("a version marker with its four fields", f"a malformed {step}")
        if not low <= version <= high:
            self._refuse(f"a supported version of {change_id!r}", f"version {version} outside {low} to {high}")
        return change_id, version

    def _cancel(self, command: Command[Any], call_kind: str) -> Progress:
        delivery = self._delivery
        assert delivery is not None
        if delivery.call_kind != call_kind:
            self._refuse(str(command), f"a cancellation delivered to a call of kind {delivery.call_kind!r}")
        if self._steps and self._steps[0].sequence == self._position:
            self._steps.popleft()
        self._delivery = None
        self._position += delivery.span
        return self._body.throw(WorkflowCancelled(request_id=delivery.request_id))

    def _author(self, command: dict[str, Any]) -> None:
        if len(self._prefix) == MAX_COMMANDS - 1:
            raise WorkflowCodeBroken(
                f"workflow {self._name!r} authors more than {MAX_COMMANDS} commands without waiting for one"
            )
        self._prefix.append(command)
        self._position += 1

    def _peek(self) -> Step | None:
        """Give the next recorded step, after markers that repeat a version decided before (replay.md §5)."""
        while self._steps and self._steps[0].shape == VERSION_MARKER:
            step = self._steps[0]
            decided = self._versions.get(str(step.details.get("change_id")))
            if decided is None:
                return step
            _, version = self._read_marker(step)
            if version != decided:
                self._refuse(f"version {decided} of {step.details['change_id']!r}", f"version {version}")
            self._take(step, step)
        return self._steps[0] if self._steps else None

    def _take(self, asked: object, step: Step) -> None:
        self._check_sequence(asked, step)
        self._steps.popleft()
        self._position = (step.sequence or self._position) + 1

    def _check_sequence(self, asked: object, step: Step) -> None:
        if self._delivery is not None and self._delivery.sequence <= self._position:
            self._refuse(str(asked), f"a cancellation delivered at sequence {self._delivery.sequence}")
        if self._strict and step.sequence != self._position:
            self._refuse(f"{asked} at sequence {self._position}", f"{step} at sequence {step.sequence}")

    def _check_activity(self, command: LocalActivity, step: ActivityStep) -> None:
        if not step.local:
            self._refuse(str(command), f"{step}: a recorded remote activity cannot replay as a local activity")
        if step.activity_type is not None and step.activity_type != command.activity_type:
            self._contradict(command, step)
        authored = str(command.cancellation_policy or CancellationPolicy.TRY_CANCEL)
        recorded = step.policies or {str(CancellationPolicy.TRY_CANCEL)}
        if recorded != {authored}:
            self._refuse(
                f"{command} with cancellation policy {authored}",
                f"policy {' and '.join(sorted(recorded))} (activity_cancellation_policy_changed)",
            )

    def _require_end(self, asked: str) -> None:
        step = self._peek()
        if step is not None:
            self._contradict(asked, step)
        if self._delivery is not None:
            self._refuse(asked, f"a cancellation delivered at sequence {self._delivery.sequence}")

    def _contradict(self, asked: object, step: Step) -> NoReturn:
        self._refuse(str(asked), str(step))

    def _refuse(self, expected: str, found: str) -> NoReturn:
        raise NonDeterminismError(
            f"workflow {self._name!r} does not match its history at sequence {self._position}: "
            f"the code asks for {expected}, the history records {found}. "
            "Deploy the code that recorded it, or guard the change with ctx.get_version",
            sequence=self._position,
            expected=expected,
            found=found,
        )


def _recorded_value(step: Step, field: object) -> Any:
    payload = step.end if isinstance(step, ActivityStep) else step.details
    if payload.get("payload_codec", codec.CODEC) != codec.CODEC:
        raise PayloadError("unsupported_payload_codec", f"the result of {step} names no payload codec")
    return codec.decode_value(field, codec.CODEC)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _encode(value: object) -> str:
    try:
        return codec.encode(value)
    except UnicodeEncodeError as exc:
        raise PayloadError("", f"text that is no Unicode cannot be stored: {exc.reason}") from exc


def _envelope(value: object) -> dict[str, str]:
    return {"codec": codec.CODEC, "blob": _encode(value)}
