"""The prepare descriptor of a local activity: read strictly, normalised, fingerprinted (prepared-local.md §2.3).

The fingerprint covers everything that may not change between attempts, the explicit cancellation policy and the place
in a group included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from proctor.core.external import Payload, digest
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Refusal, conflict

MAX_ATTEMPTS = 100

GROUP_KEYS = frozenset(
    {
        "parallel_group_id",
        "parallel_group_kind",
        "parallel_group_mode",
        "parallel_group_base_sequence",
        "parallel_group_size",
        "parallel_group_index",
        "parallel_group_path",
    }
)
_KEYS = frozenset(
    {
        "type",
        "activity_type",
        "arguments",
        "payload_codec",
        "execution_mode",
        "retry_policy",
        "start_to_close_timeout",
        "schedule_to_close_timeout",
        "heartbeat_timeout",
        "cancellation_policy",
        "cancellation_scope_id",
        "cancellation_cleanup",
    }
)
_POLICY_KEYS = frozenset({"max_attempts", "backoff_seconds", "non_retryable_error_types", "non_retryable_exceptions"})


class Descriptor(Struct, frozen=True, kw_only=True):
    """A normalised descriptor. Timeouts are in seconds; an absent retry policy means one attempt."""

    activity_type: str
    arguments: Payload | None
    max_attempts: int
    backoff_seconds: tuple[int, ...]
    non_retryable_error_types: tuple[str, ...]
    start_to_close_timeout: int | None
    schedule_to_close_timeout: int | None
    heartbeat_timeout: int | None
    cancellation_policy: str | None
    cleanup: tuple[str, str] | None
    group: dict[str, Any] = {}
    """The group fields as they were sent; whether they agree with each other is checked when the group is admitted."""

    @property
    def fingerprint(self) -> str:
        """Give the SHA-256 of everything an attempt may not change.

        The order of object keys says nothing, nor where the arguments are kept.
        """
        arguments = None if self.arguments is None else digest(self.arguments)
        content = msgspec.structs.replace(self, arguments=arguments)
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def check_policy(descriptor: Mapping[str, Any], capabilities: tuple[str, ...], policies: tuple[str, ...]) -> None:
    """Refuse an explicit cancellation policy that the server or this claim does not support.

    An explicit null is refused as well: a caller without a policy leaves the key out.
    """
    if "cancellation_policy" not in descriptor:
        return
    policy = descriptor["cancellation_policy"]
    unavailable = []
    if not isinstance(policy, str) or policy not in ("try_cancel", "wait_cancellation_completed"):
        unavailable.append("local_activity_cancellation_policy")
    elif policy not in policies:
        unavailable.append("installed_runtime_local_activity_cancellation_policy")
    if "prepared_local_activity_cancellation_policies" not in capabilities:
        unavailable.append("worker_claim_cancellation_policy_capability")
    if unavailable:
        raise conflict(
            "prepared_local_activity_cancellation_policy_not_supported",
            f"the local cancellation policy {policy!r} is not available for this claim",
            recorded=False,
            requested_policy=policy,
            supported_policies=list(policies),
            required_capability="prepared_local_activity_cancellation_policies",
            minimum_protocol_version="1.20",
            unavailable=unavailable,
            remediation="leave cancellation_policy out, or register a worker that supports it",
        )


def read_descriptor(body: Mapping[str, Any], *, limit: int, refuse_as: str) -> Descriptor:
    """Read the `descriptor` of a prepare or recover request.

    Mistakes in a payload are 422 with fields; a descriptor of another shape is 409 with the reason `refuse_as`.
    """
    raw = body.get("descriptor")
    if not isinstance(raw, dict):
        raise Refusal(422, "validation_failed", "descriptor must be an object", _one("descriptor", "is required"))
    return descriptor_from(raw, prefix="descriptor.", limit=limit, refuse_as=refuse_as)


def descriptor_from(raw: Mapping[str, Any], *, prefix: str, limit: int, refuse_as: str) -> Descriptor:
    """Read a descriptor; `prefix` says in refusals where the request has it."""
    unknown = sorted(set(raw) - _KEYS - GROUP_KEYS)
    if unknown:
        raise conflict(refuse_as, f"{prefix[:-1]} has unknown keys: {', '.join(unknown)}")
    payloads = Fields(raw, prefix)
    arguments = payloads.payload("arguments", limit=limit)
    if raw.get("payload_codec", "avro") != "avro":
        payloads.wrong("payload_codec", "only avro is supported")
    payloads.check()
    shape = Fields(raw, prefix)
    descriptor = _read_shape(shape, raw, arguments)
    if shape.errors:
        problems = "; ".join(f"{name} {texts[0]}" for name, texts in sorted(shape.errors.items()))
        raise conflict(refuse_as, f"{prefix[:-1]} is not usable: {problems}", errors=shape.errors)
    return descriptor


def _one(name: str, text: str) -> dict[str, Any]:
    return {"errors": {name: [text]}}


def _read_shape(shape: Fields, raw: Mapping[str, Any], arguments: Payload | None) -> Descriptor:
    if raw.get("type") not in ("record_local_activity", "prepare_local_activity"):
        shape.wrong("type", "must be record_local_activity")
    if raw.get("execution_mode", "local") != "local":
        shape.wrong("execution_mode", "must be local")
    if raw.get("cancellation_scope_id") is not None:
        shape.wrong("cancellation_scope_id", "cancellation scopes are not supported")
    start = shape.optional_integer("start_to_close_timeout", low=1)
    total = shape.optional_integer("schedule_to_close_timeout", low=1)
    beat = shape.optional_integer("heartbeat_timeout", low=1)
    if start is not None and total is not None and start > total:
        shape.wrong("start_to_close_timeout", "must not exceed schedule_to_close_timeout")
    if beat is not None and start is not None and beat > start:
        shape.wrong("heartbeat_timeout", "must not exceed start_to_close_timeout")
    attempts, backoff, final_types = _read_retry_policy(shape)
    policy = raw.get("cancellation_policy")
    return Descriptor(
        activity_type=shape.text("activity_type").strip(),
        arguments=arguments,
        max_attempts=attempts,
        backoff_seconds=backoff,
        non_retryable_error_types=final_types,
        start_to_close_timeout=start,
        schedule_to_close_timeout=total,
        heartbeat_timeout=beat,
        cancellation_policy=policy if isinstance(policy, str) else None,
        cleanup=_read_cleanup(shape),
        group={key: raw[key] for key in GROUP_KEYS if raw.get(key) is not None},
    )


def _read_retry_policy(shape: Fields) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    raw = shape.optional_object("retry_policy")
    if raw is None:
        return 1, (), ()
    reader = Fields(raw, f"{shape.prefix}retry_policy.", shape.errors)
    for name in sorted(set(raw) - _POLICY_KEYS):
        reader.wrong(name, "is unknown")
    attempts = reader.optional_integer("max_attempts", low=1, high=MAX_ATTEMPTS) or 1
    backoff = raw.get("backoff_seconds")
    pauses: tuple[int, ...] = ()
    if backoff is not None:
        if not isinstance(backoff, list) or not all(_is_whole(item) for item in backoff):
            reader.wrong("backoff_seconds", "must be a list of integers of at least 0")
        elif len(backoff) > attempts - 1:
            reader.wrong("backoff_seconds", "has more entries than there are retries")
        else:
            pauses = tuple(backoff)
    older = raw.get("non_retryable_exceptions")
    name = "non_retryable_error_types" if older is None else "non_retryable_exceptions"
    return attempts, pauses, tuple(dict.fromkeys(item.strip() for item in reader.texts(name)))


# Ten years; larger pauses would overflow instants, and mean a mistake.
_LONGEST_PAUSE = 315_360_000


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LONGEST_PAUSE


def _read_cleanup(shape: Fields) -> tuple[str, str] | None:
    raw = shape.optional_object("cancellation_cleanup")
    if raw is None:
        return None
    reader = Fields(raw, f"{shape.prefix}cancellation_cleanup.", shape.errors)
    for name in sorted(set(raw) - {"request_id", "delivery_history_event_id"}):
        reader.wrong(name, "is unknown")
    return reader.text("request_id"), reader.text("delivery_history_event_id")
