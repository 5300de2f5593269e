"""`GET /api/cluster/info`: what this server is and what it can do (transport.md §5). It promises nothing it lacks.

The official schema asks for more top-level objects than any worker reads; those describe an embedded server truthfully
and say nothing about features.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from proctor.core import external
from proctor.server.operations.pages import PAGE_DEFAULT, PAGE_MAX
from proctor.server.operations.updates import STAGES
from proctor.server.operations.workers import RECEIPT_SCHEMA
from proctor.server.operations.workflow_polls import POLL_DEFAULT_SECONDS
from proctor.server.operations.workflows import MAX_MEMO_BYTES
from proctor.server.rules import sticky
from proctor.server.rules.book import Settings
from proctor.server.rules.commands.batch import SUPPORTED, supported
from proctor.server.rules.commands.markers import MAX_ATTRIBUTES
from proctor.server.rules.registration import MANIFEST_FLOOR
from proctor.server.rules.sessions.views import VERBS as SESSION_VERBS
from proctor.server.rules.sessions.views import contract as session_contract
from proctor.server.rules.validations import CAPABILITY as VALIDATIONS
from proctor.server.rules.validations import CONTRACT_FIELD

SERVER_VERSION = "2.0.0"
EXTERNAL_REQUEST_SECONDS = 30
CONTROL_PLANE_VERSION = "2"
CONTROL_HEADER = "X-Durable-Workflow-Control-Plane-Version"
WORKER_HEADER = "X-Durable-Workflow-Protocol-Version"
RESPONSE_SCHEMA = "durable-workflow.v2.control-plane-response"


def server_capabilities(settings: Settings) -> dict[str, Any]:
    """Give the capabilities of the worker plane, the same in discovery and in every worker reply."""
    cooperative = settings.minor >= 20
    return {
        "long_poll_timeout": POLL_DEFAULT_SECONDS,
        "supported_workflow_task_commands": supported(settings.minor),
        "workflow_task_poll_request_idempotency": True,
        "poll_status": True,
        "history_page_size_default": PAGE_DEFAULT,
        "history_page_size_max": PAGE_MAX,
        "query_tasks": True,
        "query_task_authority": cooperative,
        "activity_lease_renewal": True,
        "cooperative_cancellation": cooperative,
        "prepared_local_activities": cooperative,
        "prepared_local_activity_groups": cooperative,
        "prepared_local_activity_cancellation_policies": list(settings.policies) if cooperative else [],
        "workflow_memo_updates": {"supported": True},
        "update_validation_tasks": True,
        "synchronous_update_validation": _synchronous_validation(settings),
        "sticky_execution": _sticky_execution(),
        "local_activities": {"supported": "record_local_activity" in SUPPORTED},
        "worker_sessions": session_contract(),
        "worker_session_verbs": list(SESSION_VERBS),
        external.CAPABILITY: settings.external_threshold_bytes is not None,
        "worker_deregistration_fencing": {
            "supported": True,
            "schema": RECEIPT_SCHEMA,
            "endpoint": "/worker/registrations/{workerId}/deregister",
            "receipt_retention_seconds": settings.receipt_retention_seconds,
        },
    }


def _sticky_execution() -> dict[str, Any]:
    return {
        "feature": "sticky_execution",
        "supported": True,
        "kind": "v2_replay_optimization",
        "worker_capability": sticky.CAPABILITY,
        "minimum_worker_protocol_version": f"1.{MANIFEST_FLOOR}",
        "cache_key_fields": ["workflow_id", "run_id", "build_id"],
        "cache_owner": "worker_process",
        "correctness_fallback": sticky.COLD,
        "routing_identity": "worker_id",
        "durable_affinity_fields": ["sticky_worker_id", "sticky_until"],
        "task_diagnostic_fields": ["sticky_replay_mode", "sticky_claimed_at"],
        "replay_modes": [sticky.HIT_EXPECTED, sticky.COLD, sticky.FORCED],
        "metrics": list(sticky.COUNTERS),
        "default_ttl_seconds": 300,
        "default_cache_capacity": 100,
        "default_capacity_pressure_ratio": 0.9,
        "contract": [
            "a claim in a completion makes the affinity of the run; nobody is preferred or held back for it",
            "every history is sent from its first event, so that cold replay is always possible",
        ],
    }


def external_payload_storage(settings: Settings) -> dict[str, Any] | None:
    """Give the policy of every namespace: which payloads clients store outside of requests, and how (§5.1)."""
    threshold = settings.external_threshold_bytes
    if threshold is None:
        return None
    return {
        "enabled": True,
        "mode": external.TRANSPORT_MODE,
        "status": "available",
        "threshold_bytes": threshold,
        "integrity_required": True,
        "direct_provider_adapters": {"capability_negotiated": False, "enabled": False},
        "transport": {
            "schema": external.TRANSPORT_SCHEMA,
            "version": 1,
            "reference_schema": external.REFERENCE_SCHEMA,
            "mode": external.TRANSPORT_MODE,
            "upload": {"method": "POST", "path": f"/api{external.ROOT}"},
            "fetch": {"method": "GET", "path_template": f"/api{external.ROOT}/{{referenceId}}"},
            "limits": {
                "max_payload_bytes": max(threshold, settings.external_max_bytes),
                "request_timeout_seconds": EXTERNAL_REQUEST_SECONDS,
            },
        },
    }


def _synchronous_validation(settings: Settings) -> dict[str, Any]:
    """Give how updates are validated before they are accepted (transport.md §5, check 13)."""
    tasks = "/worker/update-validation-tasks/{taskId}"
    return {
        "supported": True,
        "minimum_protocol_version": "1.13",
        "acceptance_boundary": "validator_approved",
        "worker_capability": VALIDATIONS,
        "workflow_contract_field": CONTRACT_FIELD,
        "task_poll": {
            "strategy": "multiplexed",
            "endpoint": "/worker/workflow-tasks/poll",
            "request_field": "task_kinds",
            "task_kinds": ["workflow", "update_validation"],
            "default_task_kinds": ["workflow"],
            "response_discriminator": "task.task_kind",
            "poll_request_id_binding": "normalized_task_kind_set",
            "poll_request_id_conflict_reason": "poll_request_task_kinds_conflict",
        },
        "completion": {
            "approve_endpoint": f"{tasks}/approve",
            "reject_endpoint": f"{tasks}/reject",
            "fence_fields": ["lease_owner", "update_validation_attempt"],
            "typed_failure_reasons": [
                "update_validation_task_not_found",
                "duplicate_update_validation_completion",
                "update_validation_task_not_leased",
                "update_validation_lease_owner_mismatch",
                "stale_update_validation_completion",
                "update_validation_lease_expired",
                "update_validator_worker_lost",
            ],
        },
        "timeout_seconds": int(settings.validation_seconds),
        "lease_timeout_seconds": int(settings.validation_seconds),
    }


def control_plane_manifest() -> dict[str, Any]:
    """Give the control plane's version and what its requests may say."""

    def words(*values: str) -> dict[str, Any]:
        return {"canonical_values": list(values)}

    return {
        "version": CONTROL_PLANE_VERSION,
        "header": CONTROL_HEADER,
        "request_contract": {
            "schema": "durable-workflow.v2.control-plane-request.contract",
            "version": 1,
            "operations": {
                "start": {"fields": {"duplicate_policy": words("fail", "use-existing")}},
                "list": {"fields": {"status": words("running", "completed", "failed")}},
                "update": {"fields": {"wait_for": words(*STAGES)}},
            },
        },
        "response_contract": {"schema": f"{RESPONSE_SCHEMA}.contract", "version": 1},
    }


def auth_composition() -> dict[str, Any]:
    """Give the contract by which clients find their credentials; the SDK checks every entry."""
    return {
        "schema": "durable-workflow.v2.auth-composition.contract",
        "version": 1,
        "precedence": {
            "connection_values": ["flag", "environment", "selected_profile", "default"],
            "profile_selection": ["flag_env", "DW_ENV", "current_profile", "default_profile"],
        },
        "canonical_environment": {
            "server_url": "DURABLE_WORKFLOW_SERVER_URL",
            "namespace": "DURABLE_WORKFLOW_NAMESPACE",
            "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
            "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
            "profile": "DW_ENV",
        },
        "auth_material": {
            "token": {"status": "supported", "effective_config_value": "redacted"},
            "mtls": {"status": "reserved"},
            "signed_headers": {"status": "reserved"},
        },
        "effective_config": {"required_fields": ["server_url", "namespace", "profile", "auth", "tls", "identity"]},
        "redaction": {"never_echo": ["bearer_tokens", "private_keys", "raw_authorization_headers"]},
    }


def cluster_info(
    settings: Settings,
    *,
    server_id: str,
    namespace: str,
    default_namespace: str,
    workers: list[dict[str, Any]],
) -> dict[str, Any]:
    """Give the whole discovery body for a namespace and its registered workers."""
    active = [worker for worker in workers if worker["status"] == "active"]
    return {
        "server_id": server_id,
        "version": SERVER_VERSION,
        "default_namespace": default_namespace,
        "supported_sdk_versions": {"python": ">=2.12,<3"},
        "capabilities": _features(),
        "namespace": {"name": namespace, "external_payload_storage": external_payload_storage(settings)},
        "worker_fleet": {
            "namespace": namespace,
            "active_workers": len(active),
            "active_worker_scopes": [],
            "queues": sorted({str(worker["task_queue"]) for worker in active}),
            "build_ids": sorted({str(worker["build_id"]) for worker in active if worker["build_id"]}),
            "workers": active,
        },
        "task_repair": {"policy": {"expired_leases": "reclaimed_at_expiry"}, "candidates": []},
        "limits": {
            "max_payload_bytes": settings.max_payload_bytes,
            "max_memo_bytes": MAX_MEMO_BYTES,
            "max_search_attributes": MAX_ATTRIBUTES,
            "max_pending_activities": settings.limits.pending_activity_count,
            "max_pending_children": settings.limits.pending_child_count,
        },
        "structural_limits": asdict(settings.limits),
        "topology": {
            "schema": "durable-workflow.v2.topology",
            "version": 1,
            "supported_shapes": ["embedded"],
            "current_shape": "embedded",
        },
        "coordination_health": {
            "schema": "durable-workflow.v2.coordination-health",
            "version": 1,
            "status": "healthy",
            "checks": [],
        },
        "client_compatibility": {"authority": "protocol_manifests"},
        **_platform_contracts(),
        "auth_composition_contract": auth_composition(),
        "control_plane": control_plane_manifest(),
        "worker_protocol": {
            "version": settings.protocol,
            "header": WORKER_HEADER,
            "server_capabilities": server_capabilities(settings),
        },
    }


def _features() -> dict[str, Any]:
    absent = (
        "schedules",
        "bridge_adapter_outcome_contract",
        "replay_verification_contract",
        "external_executor_config_contract",
        "invocable_carrier_contract",
    )
    return {
        "workflow_tasks": True,
        "activity_tasks": True,
        "signals": True,
        "continue_as_new": "continue_as_new" in SUPPORTED,
        "child_workflows": "start_child_workflow" in SUPPORTED,
        "queries": True,
        "history_export": True,
        "updates": True,
        **dict.fromkeys(absent, False),
        "payload_codec_envelope": True,
        "payload_codec_envelope_responses": True,
        "payload_codecs": ["avro"],
        "payload_codecs_engine_specific": {},
        "response_compression": [],
    }


def _platform_contracts() -> dict[str, Any]:
    """Give the platform-wide manifests in the smallest form their schemas allow: an embedded server owns none."""
    authority = "https://durable-workflow.github.io/"
    return {
        "surface_stability_contract": {
            "schema": "durable-workflow.v2.surface-stability.contract",
            "version": 1,
            "authority_url": authority,
            "stability_levels": {},
            "release_rules": {},
            "field_visibility_rule": "unknown fields are ignored",
            "surface_families": {},
            "release_check": {},
        },
        "platform_protocol_specs": {
            "schema": "durable-workflow.v2.platform-protocol-specs.catalog",
            "version": 1,
            "authority_url": authority,
            "formats": {},
            "owner_repos": [],
            "status_levels": {},
            "evolution_rules": {},
            "specs": {},
            "release_check": {},
        },
        "platform_conformance_suite": {
            "schema": "durable-workflow.v2.platform-conformance.suite",
            "version": 1,
            "authority_doc": authority,
            "surface_stability_authority": authority,
            "result_schema": "durable-workflow.v2.platform-conformance.result",
            "result_version": 1,
            "conformance_levels": {},
            "targets": {},
            "fixture_catalog": {},
            "pass_fail_rules": {},
            "harness_contract": {},
            "release_gates": {},
        },
        "sdk_neutrality_contract": {"supported": False},
        "bridge_adapter_outcome_contract": {"supported": False},
        "replay_verification_contract": {"supported": False},
    }
