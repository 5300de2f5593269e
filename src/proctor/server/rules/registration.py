"""Registering a worker: what it may claim to be able to do, refused as a whole (transport.md §7).

Nothing is stored of a refused registration. Which tasks a registration frees is the operation's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from proctor.server.rules.book import Settings
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Refusal, conflict
from proctor.server.rules.rows import Registration, Run

RUNTIMES = ("php", "python", "rust", "typescript", "go", "java", "external")
MANIFEST_KEYS = ("local_activities", "worker_sessions", "sticky_execution")
MANIFEST_FLOOR = 18
RECEIVERS = ("queries", "signals", "updates", "update_validators")

_VERSION = re.compile(r"1\.(0|[1-9][0-9]{0,3})")


def read_registration(
    body: Mapping[str, Any],
    *,
    namespace: str,
    minor: int,
    token: str,
    fresh_worker_id: str,
    now: datetime,
    settings: Settings,
) -> Registration:
    """Read a register request of protocol 1.`minor`, or raise the first refusal."""
    fields = Fields(body)
    manifest = fields.optional_object("capability_manifest")
    if minor >= MANIFEST_FLOOR:
        _require_manifest(fields, manifest)
    workflow_slots = fields.optional_integer("max_concurrent_workflow_tasks", low=0)
    activity_slots = fields.optional_integer("max_concurrent_activity_tasks", low=0)
    if workflow_slots == 0 and activity_slots == 0:
        fields.wrong("max_concurrent_workflow_tasks", "and max_concurrent_activity_tasks must not both be 0")
    fingerprints = fields.optional_object("workflow_definition_fingerprints") or {}
    if not all(isinstance(value, str) for value in fingerprints.values()):
        fields.wrong("workflow_definition_fingerprints", "must map workflow types to strings")
        fingerprints = {}
    registration = Registration(
        namespace=namespace,
        worker_id=fields.optional_text("worker_id") or fresh_worker_id,
        token=token,
        task_queue=fields.text("task_queue"),
        runtime=fields.choice("runtime", RUNTIMES, default=str(body.get("runtime"))),
        sdk_version=fields.optional_text("sdk_version", limit=64),
        build_id=fields.optional_text("build_id"),
        protocol=f"1.{minor}",
        workflow_types=fields.texts("supported_workflow_types"),
        activity_types=fields.texts("supported_activity_types"),
        fingerprints=fingerprints,
        command_contracts=_read_contracts(fields),
        capabilities=tuple(dict.fromkeys(fields.texts("capabilities"))),
        manifest=manifest or {},
        max_concurrent_workflow_tasks=100 if workflow_slots is None else workflow_slots,
        max_concurrent_activity_tasks=100 if activity_slots is None else activity_slots,
        max_concurrent_worker_sessions=fields.optional_integer("max_concurrent_worker_sessions", low=1) or 10,
        task_slots=fields.optional_object("task_slots"),
        process_metrics=fields.optional_object("process_metrics"),
        heartbeat_interval_seconds=fields.optional_integer("heartbeat_interval_seconds", low=1, high=3_600)
        or settings.worker_heartbeat_seconds,
        registered_at=now,
        last_heartbeat_at=now,
    )
    fields.check()
    _check_manifest(manifest or {}, registration.capabilities, minor)
    _check_capabilities(registration.capabilities, minor)
    return registration


def _read_contracts(fields: Fields) -> dict[str, Any]:
    """Read which receivers each workflow type declares by name; the details of a declaration are kept as they are."""
    contracts = fields.optional_object("workflow_command_contracts") or {}
    for workflow_type, contract in contracts.items():
        name = f"workflow_command_contracts.{workflow_type}"
        if not isinstance(contract, dict):
            fields.wrong(name, "must be an object")
            continue
        reader = Fields(contract, f"{name}.", fields.errors)
        for receivers in RECEIVERS:
            reader.texts(receivers)
    return contracts


def _require_manifest(fields: Fields, manifest: Mapping[str, Any] | None) -> None:
    if manifest is None:
        if "capability_manifest" not in fields.errors:
            fields.wrong("capability_manifest", "is required from protocol 1.18")
        return
    for key in MANIFEST_KEYS:
        if not isinstance(manifest.get(key), dict):
            fields.wrong(f"capability_manifest.{key}", "is required")
    for key, entry in manifest.items():
        if not isinstance(entry, dict):
            fields.wrong(f"capability_manifest.{key}", "must be an object")
            continue
        reader = Fields(entry, f"capability_manifest.{key}.", fields.errors)
        if not isinstance(entry.get("supported"), bool):
            reader.wrong("supported", "must be true or false")
        if not isinstance(entry.get("minimum_protocol_version"), str):
            reader.wrong("minimum_protocol_version", "must be a string")
        reader.optional_text("implementation")
        reader.optional_text("reason")


def _check_manifest(manifest: Mapping[str, Any], capabilities: tuple[str, ...], minor: int) -> None:
    if minor < MANIFEST_FLOOR:
        return
    for key in MANIFEST_KEYS:
        if manifest[key]["supported"] != (key in capabilities):
            raise _refuse(
                "worker_capability_manifest_mismatch",
                f"capability_manifest.{key}.supported and the list of capabilities disagree",
                minor,
                capability=key,
                minimum_protocol_version=f"1.{MANIFEST_FLOOR}",
            )
    for key, entry in manifest.items():
        floor = _VERSION.fullmatch(entry["minimum_protocol_version"])
        if floor is None or int(floor[1]) < MANIFEST_FLOOR or (entry["supported"] and minor < int(floor[1])):
            raise _refuse(
                "worker_capability_protocol_floor_mismatch",
                f"capability_manifest.{key} needs protocol {entry['minimum_protocol_version'] or '(empty)'}",
                minor,
                capability=key,
                minimum_protocol_version=entry["minimum_protocol_version"],
            )


# (capability, capabilities it needs beside it, lowest minor, reason); the first rule broken is the one reported.
_RULES = (
    ("memo_upserts", (), 14, "workflow_metadata_capability_protocol_mismatch"),
    ("typed_search_attributes", (), 16, "workflow_metadata_capability_protocol_mismatch"),
    ("message_streams", (), 15, "message_streams_unavailable"),
    (
        "prepared_local_activities",
        ("cooperative_cancellation",),
        20,
        "prepared_local_activity_capability_mismatch",
    ),
    (
        "prepared_local_activity_cancellation_policies",
        ("prepared_local_activities", "cooperative_cancellation"),
        20,
        "prepared_local_activity_cancellation_policy_capability_mismatch",
    ),
    (
        "prepared_local_activity_groups",
        ("prepared_local_activities", "cooperative_cancellation"),
        20,
        "prepared_local_activity_group_capability_mismatch",
    ),
    ("cooperative_cancellation", (), 20, "cooperative_cancellation_protocol_mismatch"),
)


def _check_capabilities(capabilities: tuple[str, ...], minor: int) -> None:
    for capability, needs, floor, reason in _RULES:
        if capability not in capabilities:
            continue
        missing = [need for need in needs if need not in capabilities]
        if missing or minor < floor:
            lacks = f"the capability {', '.join(missing)}" if missing else f"protocol 1.{floor}"
            raise _refuse(
                reason,
                f"the capability {capability} needs {lacks}",
                minor,
                capability=capability,
                minimum_protocol_version=f"1.{floor}",
            )


def _refuse(reason: str, text: str, minor: int, **extra: Any) -> Refusal:
    return conflict(reason, text, registered=False, requested_version=f"1.{minor}", **extra)


def build_of(registration: Registration) -> str | None:
    """Give the build of a worker; a blank one is none."""
    return (registration.build_id or "").strip() or None


def may_replay(registration: Registration, run: Run) -> bool:
    """Say whether a worker is of the build that a run is pinned to, and declares all that its history holds."""
    of_its_build = run.compatibility is None or build_of(registration) == run.compatibility
    return of_its_build and set(run.needed_capabilities) <= set(registration.capabilities)


def is_stale(registration: Registration, *, now: datetime, stale_seconds: int) -> bool:
    """Say whether a worker has been silent for too long."""
    return now - registration.last_heartbeat_at > timedelta(seconds=stale_seconds)


def check_definitions(new: Registration, old: Registration | None) -> None:
    """Refuse a worker id that is active with another definition of the same workflow type."""
    if old is None:
        return
    for workflow_type, fingerprint in new.fingerprints.items():
        known = old.fingerprints.get(workflow_type)
        if known is not None and known != fingerprint:
            raise conflict(
                "workflow_definition_changed",
                f"worker {new.worker_id} is registered with another definition of {workflow_type}; "
                "deregister it first, or start with another worker id",
                registered=False,
                worker_id=new.worker_id,
                workflow_type=workflow_type,
            )
