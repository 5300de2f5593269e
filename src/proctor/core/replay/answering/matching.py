"""Whether one authored command is the one that history recorded (replay.md §3, "Nondeterminism errors").

Compared is what identifies an operation: its kind, name, policies, delay and place in groups. Arguments, timeouts,
retry policies and queues may change between deployments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proctor.core import codec
from proctor.core.replay.authoring.commands import (
    Activity,
    ChildWorkflow,
    LocalActivity,
    SideEffect,
    Timer,
    UpsertMemo,
    UpsertSearchAttributes,
    VersionDecision,
    WaitCondition,
)
from proctor.core.replay.authoring.options import CancellationPolicy, ParentClosePolicy
from proctor.core.replay.authoring.placing import Path
from proctor.core.replay.authoring.service import ServiceOperation
from proctor.core.replay.recorded.steps import (
    ACTIVITY,
    CHILD,
    CONDITION,
    MEMO,
    SEARCH_ATTRIBUTES,
    SERVICE,
    SIDE_EFFECT,
    TIMER,
    VERSION_MARKER,
    ActivityStep,
    ChildStep,
    MarkerStep,
    ServiceStep,
    Step,
    TimerStep,
    shown,
)

Mismatch = tuple[str, str]
"""What the code asks for, and what history records."""

_SHAPES: Final[dict[type[Any], str]] = {
    Activity: ACTIVITY,
    LocalActivity: ACTIVITY,
    Timer: TIMER,
    ChildWorkflow: CHILD,
    WaitCondition: CONDITION,
    ServiceOperation: SERVICE,
    SideEffect: SIDE_EFFECT,
    VersionDecision: VERSION_MARKER,
    UpsertMemo: MEMO,
    UpsertSearchAttributes: SEARCH_ATTRIBUTES,
}


def mismatch(command: object, step: Step, path: Path | None = None) -> Mismatch | None:
    """Say how `step` differs from what `command` asks for; None when it is the same operation."""
    if step.shape != _SHAPES.get(type(command)):
        return str(command), str(step)
    if path is not None and step.path is not None and list(path) != step.path:
        return f"{command} as member {_place(path)}", f"member {_place(step.path)} (parallel_group_path changed)"
    compare = _COMPARISONS.get(type(command))
    return None if compare is None else compare(command, step)


def wait_mismatch(command: WaitCondition, step: Any) -> Mismatch | None:
    """Say how a recorded wait differs; what history does not hold is not compared."""
    if step.key is not None and step.key != (command.key or ""):
        return f"{command}", f"the key {step.key!r} (condition_key_changed)"
    if step.fingerprint is not None and command.fingerprint not in (None, step.fingerprint):
        return (
            f"{command} with fingerprint {command.fingerprint}",
            f"fingerprint {step.fingerprint!r} (condition_fingerprint_changed)",
        )
    return None


def same_wait(command: WaitCondition, step: Any) -> bool:
    """Tell whether a recorded opening is one more of the same logical wait (events.md §7)."""
    if step is None or wait_mismatch(command, step) is not None:
        return False
    return bool(step.key) or bool(step.fingerprint)


def _activity(command: Activity | LocalActivity, step: ActivityStep) -> Mismatch | None:
    if isinstance(command, LocalActivity) and not step.local:
        return str(command), f"{step}: a recorded remote activity cannot replay as a local activity"
    if isinstance(command, Activity) and step.local:
        return str(command), f"{step}: a recorded local activity cannot replay as a queued activity"
    if step.activity_type is not None and step.activity_type != command.activity_type:
        return str(command), str(step)
    authored = str(command.cancellation_policy or CancellationPolicy.TRY_CANCEL)
    recorded = step.policies or {str(CancellationPolicy.TRY_CANCEL)}
    if recorded != {authored}:
        return (
            f"{command} with cancellation policy {authored}",
            f"policy {' and '.join(sorted(recorded))} (activity_cancellation_policy_changed)",
        )
    return None


def _timer(command: Timer, step: TimerStep) -> Mismatch | None:
    if step.delay is not None and step.delay != command.delay_seconds:
        return str(command), f"a timer of {shown(step.delay)} s"
    return None


def _child(command: ChildWorkflow, step: ChildStep) -> Mismatch | None:
    if step.workflow_type is not None and step.workflow_type != command.workflow_type:
        return str(command), str(step)
    for name, authored, recorded in (
        ("parent_close_policy", command.parent_close_policy, step.parent_close_policy),
        ("cancellation_policy", command.cancellation_policy, step.cancellation_policy),
    ):
        policy = str(authored or ParentClosePolicy.ABANDON)
        if (recorded or "abandon") != policy:
            return (
                f"{command} with {name} {policy}",
                f"{name} {recorded or 'abandon'} (child_workflow_policy_changed)",
            )
    return None


def _memo(command: UpsertMemo, step: MarkerStep) -> Mismatch | None:
    if step.memo is not None and step.memo != codec.encode(dict(command.entries)):
        return f"{command} of {', '.join(command.entries)}", "other memo entries"
    return None


def _service(command: ServiceOperation, step: ServiceStep) -> Mismatch | None:
    authored = {
        "endpoint_name": command.endpoint_name,
        "service_name": command.service_name,
        "operation_name": command.operation_name,
        "idempotency_key": command.idempotency_key,
        "target_namespace": command.target_namespace,
        "operation_mode": command.mode,
        "wait_for": command.wait_for,
    }
    for name, value in authored.items():
        recorded = step.facts.get(name)
        if recorded is not None and value is not None and recorded != value:
            return f"{command} with {name} {value!r}", f"{name} {shown(recorded)} (nexus_{name}_changed)"
    return None


def _place(path: Any) -> str:
    return " in ".join(
        f"{entry.get('parallel_group_index')} of {entry.get('parallel_group_id')}" for entry in reversed(path)
    )


_COMPARISONS: Final[dict[type[Any], Callable[[Any, Any], Mismatch | None]]] = {
    Activity: _activity,
    LocalActivity: _activity,
    Timer: _timer,
    ChildWorkflow: _child,
    UpsertMemo: _memo,
    ServiceOperation: _service,
}
