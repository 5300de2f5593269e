"""Discovery + options -> what to register, or a refusal that names what is missing (transport.md §5 to §7).

Fail closed: nothing is advertised that is not implemented and switched on, and a worker that lacks
something the profile needs does not register at all. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.core.external import ExternalTerms, read_external_terms
from proctor.errors import ExternalPayloadUnsupported, NegotiationRefused, UsageError

SUPERVISED_PROTOCOL = "1.20"
ORDINARY_PROTOCOLS = ("1.18", "1.19")
"""What the ordinary profile speaks; the newest one that the server covers is taken."""

PROFILES = ("supervised", "ordinary")
"""Profiles that this version can run."""

QUERY_TASKS = "query_tasks"
"""The capability of a worker that answers queries, and what a server calls handing them out."""

WORKFLOW_UPDATES = "workflow_updates"
"""The capability of a worker whose workflows have updates."""

UPDATE_VALIDATION = "update_validation_tasks"
"""The capability of a worker whose workflows validate updates, and what a server calls asking them."""

_MAJOR, _MINOR = 1, 20
_POLICIES = ("try_cancel", "wait_cancellation_completed")
_FENCING_SCHEMA = "durable-workflow.v2.worker-deregistration.v1"
_FENCING_ENDPOINT = "/worker/registrations/{workerId}/deregister"
_REQUEST_CONTRACT = "durable-workflow.v2.control-plane-request.contract"
_UNSUPPORTED = {
    "local_activities": "supervised_profile_prepares_local_activities",
    "worker_sessions": "not_implemented",
    "sticky_execution": "sticky_cache_disabled",
}


@dataclass(frozen=True, slots=True)
class ReplayFeatures:
    """Capabilities that hold because the replay core implements them, spelled as in the flat list."""

    names: tuple[str, ...] = (
        "memo_upserts",
        "typed_search_attributes",
        "durable_selection",
        "workflow_entry_arguments_validation",
        "message_streams",
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What both sides agreed on: the body parts of the registration and what the server allows."""

    capabilities: tuple[str, ...]
    manifest: Mapping[str, Mapping[str, Any]]
    fenced_deregistration: bool
    max_payload_bytes: int | None
    max_poll_seconds: int
    protocol: str = SUPERVISED_PROTOCOL
    """What every later request of this worker announces."""
    activity_lease_renewal: bool = False
    """Whether the server renews the leases of queued activities, and then demands it."""
    query_tasks: bool = False
    """Whether the server hands out queries."""
    query_task_authority: bool = False
    """Whether the claim on a query can be looked at, and then must be."""
    memo_updates: bool = False
    """Whether the server takes `upsert_memo`."""
    external: ExternalTerms | None = None
    """How large payloads are stored outside of requests and history; None when the namespace stores none."""

    @property
    def max_result_bytes(self) -> int | None:
        """The largest payload that a result may be, wherever it is kept; None when the server states no limit."""
        if self.external is None or not self.external.available:
            return self.max_payload_bytes
        return self.external.max_bytes


def check_profile(profile: str) -> None:
    """Refuse a profile this version cannot run; a worker runs exactly one.

    Raises UsageError naming what is available.
    """
    if profile not in PROFILES:
        available = ", ".join(repr(name) for name in PROFILES)
        raise UsageError(f"profile {profile!r} is not available; a worker runs exactly one of: {available}")


def negotiate(profile: str, cluster_info: object) -> Terms:
    """Agree on `profile` with a server's cluster info. Raises NegotiationRefused."""
    return negotiate_ordinary(cluster_info) if profile == "ordinary" else negotiate_supervised(cluster_info)


def require_update_validation(cluster_info: object) -> None:
    """Refuse a server that would accept updates without asking their validators (transport.md §5, check 13).

    Raises NegotiationRefused: such updates would be recorded although the workflow's code forbids them.
    """
    info = cluster_info if isinstance(cluster_info, Mapping) else {}
    worker = _mapping(info, "worker_protocol")
    server = _mapping(worker, "server_capabilities")
    contract = _mapping(server, "synchronous_update_validation")
    poll = _mapping(contract, "task_poll")
    stated = (server.get(UPDATE_VALIDATION), contract.get("supported"))
    words = tuple(
        contract.get(name) for name in ("acceptance_boundary", "worker_capability", "workflow_contract_field")
    )
    polled = tuple(poll.get(name) for name in ("strategy", "endpoint", "request_field", "response_discriminator"))
    kinds = poll.get("task_kinds")
    if (
        any(one is not True for one in stated)
        or words != ("validator_approved", UPDATE_VALIDATION, "update_validators")
        or polled != ("multiplexed", "/worker/workflow-tasks/poll", "task_kinds", "task.task_kind")
        or not (isinstance(kinds, Sequence) and "workflow" in kinds and "update_validation" in kinds)
    ):
        missing = [f"worker_protocol.server_capabilities.{UPDATE_VALIDATION}"]
        raise NegotiationRefused(
            f"workflows of this worker validate updates, and the server does not offer {missing[0]} "
            "(known contract): it would accept updates that they forbid; the worker does not register with it. "
            "Use a server that validates updates, or remove the validators",
            missing=tuple(missing),
        )


def negotiate_ordinary(cluster_info: object, *, features: ReplayFeatures | None = None) -> Terms:
    """Agree on the ordinary profile (worker protocol 1.18 or 1.19, with a server of 1.18 to 1.20).

    Raises NegotiationRefused whose `missing` names every absent capability as it is spelled in cluster info.
    """
    info = cluster_info if isinstance(cluster_info, Mapping) else {}
    missing: list[str] = []
    _check_control_plane(_mapping(info, "control_plane"), missing)
    worker = _mapping(info, "worker_protocol")
    spoken = [version for version in ORDINARY_PROTOCOLS if _covers(worker.get("version"), int(version[2:]))]
    if not spoken:
        missing.append(f"worker_protocol.version >= {ORDINARY_PROTOCOLS[0]}")
    server = _mapping(worker, "server_capabilities")
    prefix = "worker_protocol.server_capabilities"
    if _mapping(server, "local_activities").get("supported") is not True:
        missing.append(f"{prefix}.local_activities")
    fenced = _fencing(server.get("worker_deregistration_fencing"), prefix, missing)
    external = _external(info, missing)
    if missing:
        raise _refused("ordinary", worker.get("version"), missing, "1.18 or newer and takes record_local_activity")
    manifest = {name: _entry(supported=False, reason=reason) for name, reason in _UNSUPPORTED.items()}
    manifest["local_activities"] = _entry(supported=True, implementation="record_local_activity")
    return Terms(
        capabilities=(*(features or ReplayFeatures()).names, *_query_tasks(server), "local_activities"),
        manifest=manifest,
        fenced_deregistration=fenced,
        max_payload_bytes=_positive(_mapping(info, "limits").get("max_payload_bytes")),
        max_poll_seconds=min(_positive(server.get("long_poll_timeout")) or 30, 60),
        protocol=spoken[-1],
        activity_lease_renewal=server.get("activity_lease_renewal") is True,
        query_tasks=bool(_query_tasks(server)),
        memo_updates=_memo_updates(server),
        external=external,
    )


def _memo_updates(server: Mapping[str, Any]) -> bool:
    commands = server.get("supported_workflow_task_commands")
    listed = isinstance(commands, Sequence) and not isinstance(commands, str) and "upsert_memo" in commands
    return listed and _mapping(server, "workflow_memo_updates").get("supported") is True


def _query_tasks(server: Mapping[str, Any]) -> tuple[str, ...]:
    return (QUERY_TASKS,) if server.get(QUERY_TASKS) is True else ()


def _refused(profile: str, found: object, missing: list[str], needed: str) -> NegotiationRefused:
    return NegotiationRefused(
        f"the server does not offer what the {profile} profile needs: {', '.join(missing)} "
        f"(it advertises worker protocol {found if isinstance(found, str) else 'nothing readable'}); "
        f"the worker does not register with it. Use a server that speaks worker protocol {needed}",
        missing=tuple(missing),
    )


def negotiate_supervised(cluster_info: object, *, features: ReplayFeatures | None = None) -> Terms:
    """Agree on the supervised profile (worker protocol 1.20) with a server's cluster info.

    Raises NegotiationRefused whose `missing` names every absent capability as it is spelled in cluster info.
    """
    info = cluster_info if isinstance(cluster_info, Mapping) else {}
    missing: list[str] = []
    _check_control_plane(_mapping(info, "control_plane"), missing)
    worker = _mapping(info, "worker_protocol")
    if not _covers(worker.get("version"), _MINOR):
        missing.append(f"worker_protocol.version >= {SUPERVISED_PROTOCOL}")
    server = _mapping(worker, "server_capabilities")
    prefix = "worker_protocol.server_capabilities"
    for name in ("cooperative_cancellation", "prepared_local_activities"):
        if server.get(name) is not True:
            missing.append(f"{prefix}.{name}")
    fenced = _fencing(server.get("worker_deregistration_fencing"), prefix, missing)
    external = _external(info, missing)
    if missing:
        raise _refused("supervised", worker.get("version"), missing, "1.20")
    capabilities = [
        *(features or ReplayFeatures()).names,
        *_query_tasks(server),
        "cooperative_cancellation",
        "prepared_local_activities",
    ]
    manifest = {name: _entry(supported=False, reason=reason) for name, reason in _UNSUPPORTED.items()}
    manifest["prepared_local_activities"] = _entry(
        supported=True, implementation="durable_sequential_admission", minimum=SUPERVISED_PROTOCOL
    )
    if server.get("prepared_local_activity_groups") is True:
        capabilities.append("prepared_local_activity_groups")
        manifest["prepared_local_activity_groups"] = _entry(
            supported=True, implementation="durable_atomic_all_admission", minimum=SUPERVISED_PROTOCOL
        )
    if _offers_policies(server.get("prepared_local_activity_cancellation_policies")):
        capabilities.append("prepared_local_activity_cancellation_policies")
        manifest["prepared_local_activity_cancellation_policies"] = _entry(
            supported=True,
            implementation="prepared_local_policy_admission_and_replay",
            minimum=SUPERVISED_PROTOCOL,
        )
    return Terms(
        capabilities=tuple(capabilities),
        manifest=manifest,
        fenced_deregistration=fenced,
        max_payload_bytes=_positive(_mapping(info, "limits").get("max_payload_bytes")),
        max_poll_seconds=min(_positive(server.get("long_poll_timeout")) or 30, 60),
        activity_lease_renewal=server.get("activity_lease_renewal") is True,
        query_tasks=bool(_query_tasks(server)),
        memo_updates=_memo_updates(server),
        query_task_authority=server.get("query_task_authority") is True,
        external=external,
    )


def _check_control_plane(control: Mapping[str, Any], missing: list[str]) -> None:
    if str(control.get("version")) != "2":
        missing.append("control_plane.version 2")
    contract = _mapping(control, "request_contract")
    if contract.get("schema") != _REQUEST_CONTRACT or str(contract.get("version")) != "1":
        missing.append("control_plane.request_contract version 1")


def _fencing(stated: object, prefix: str, missing: list[str]) -> bool:
    """Fencing may be absent; when it is advertised it must be the contract we know (transport.md §5,
    check 6).
    """
    if not isinstance(stated, Mapping) or stated.get("supported") is not True:
        return False
    if (
        stated.get("schema") != _FENCING_SCHEMA
        or stated.get("endpoint") != _FENCING_ENDPOINT
        or _positive(stated.get("receipt_retention_seconds")) is None
    ):
        missing.append(f"{prefix}.worker_deregistration_fencing (known contract)")
    return True


def _external(info: Mapping[str, Any], missing: list[str]) -> ExternalTerms | None:
    """External payloads may be absent; when they are offered it must be in the way we know (transport.md §5.1)."""
    try:
        return read_external_terms(info)
    except ExternalPayloadUnsupported as exc:
        missing.append(f"namespace.external_payload_storage (known contract: {exc})")
        return None


def _covers(version: object, least: int) -> bool:
    if not isinstance(version, str):
        return False
    major, _, minor = version.partition(".")
    if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit() and len(minor) <= 4):
        return False
    return int(major) == _MAJOR and int(minor) >= least


def _offers_policies(stated: object) -> bool:
    return (
        isinstance(stated, Sequence) and not isinstance(stated, str) and any(policy in stated for policy in _POLICIES)
    )


def _entry(*, supported: bool, minimum: str = "1.18", **extra: str) -> Mapping[str, Any]:
    return {"supported": supported, "minimum_protocol_version": minimum, **extra}


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
