"""References to external payloads in requests: looked up before an operation reads the request, kept after it.

Each well-formed reference of a body is replaced by what the rules read as a payload, or by the refusal that they raise
where they read one. A memo is the exception: the server reads it itself, so it is put back inline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.core.external import KEY, External, Reference, read_envelope
from proctor.errors import ExternalPayloadUnsupported
from proctor.server.rules.refusal import Refusal, Unstored, not_found
from proctor.server.transaction import Transaction

_MAX_DEPTH = 250


class References:
    """Looks up the references of one request. `found` are the ids that an accepted request makes permanent."""

    def __init__(self, tx: Transaction, namespace: str) -> None:
        self._tx = tx
        self._namespace = namespace
        self.found: set[str] = set()

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """Give a value of a request with its references looked up."""
        if isinstance(value, list):
            return [self.resolved(item, depth + 1) for item in value] if depth < _MAX_DEPTH else value
        if not isinstance(value, dict) or depth >= _MAX_DEPTH:
            return value
        if KEY in value:
            return self._payload(value)
        inner = {key: self.resolved(item, depth + 1) for key, item in value.items()}
        if inner.get("type") == "upsert_memo" and isinstance(inner.get("entries"), External):
            inner["entries"] = self._inline(inner["entries"])
        return inner

    def keep(self) -> None:
        """Keep what the request refers to for good."""
        if self.found:
            self._tx.claim_external(self.found)

    def _payload(self, value: Mapping[str, Any]) -> Any:
        if self._tx.settings.external_threshold_bytes is None:
            return value
        try:
            external = read_envelope(value)
        except ExternalPayloadUnsupported:
            return value  # refused with its place where it is read as a payload, and plain data elsewhere
        reference = external.external_payload
        facts = self._tx.external_facts(self._namespace, reference.reference_id)
        if facts is None:
            return Unstored(value, unknown(reference.reference_id))
        if facts != (reference.size_bytes, reference.sha256):
            return Unstored(value, mismatch(reference.reference_id))
        self.found.add(reference.reference_id)
        return external

    def _inline(self, external: External) -> Any:
        reference: Reference = external.external_payload
        content = self._tx.external(self._namespace, reference.reference_id)
        return external if content is None else {"codec": external.codec, "blob": content.decode("ascii")}


def unknown(reference_id: str) -> Refusal:
    """Make the refusal of a reference that the namespace does not have (any more)."""
    return not_found(
        "external_payload_not_found",
        f"this namespace has no stored payload {reference_id[:64]!r}; upload it again",
        reference_id=reference_id[:64],
        retryable=False,
    )


def mismatch(reference_id: str) -> Refusal:
    """Make the refusal of a reference that describes other bytes than those that are stored."""
    return Refusal(
        422,
        "external_payload_integrity_mismatch",
        f"the stored payload {reference_id} has another size or SHA-256 than stated",
        {"reference_id": reference_id, "retryable": False},
    )
