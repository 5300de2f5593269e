"""Payloads kept outside of requests and histories: their references, and the transport that carries them. Pure.

It owns what both sides of payloads.md §5 and transport.md §5.1 agree on: the wire form of a reference, the names on the
wire, the terms that discovery states, and what makes bytes the ones a reference means. The stored bytes are the text of
a payload's blob. Storing, sending and fetching are left to server and worker.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from proctor.core.codec import CODEC
from proctor.errors import ExternalPayloadRejected, ExternalPayloadUnsupported

REFERENCE_SCHEMA: Final = "durable-workflow.v2.runtime-external-payload-reference.v1"
UPLOAD_SCHEMA: Final = "durable-workflow.v2.runtime-external-payload-upload.v1"
TRANSPORT_SCHEMA: Final = "durable-workflow.v2.runtime-external-payload-transport.v1"
TRANSPORT_MODE: Final = "authenticated_namespace_runtime"
CAPABILITY: Final = "runtime_external_payload_transport"
ROOT: Final = "/external-payloads/v1"
"""Where payloads are uploaded to; one of them is below it by its reference id. Without ``/api``."""
KEY: Final = "external_payload"
CODEC_HEADER: Final = "X-Durable-Workflow-Payload-Codec"
SIZE_HEADER: Final = "X-Durable-Workflow-Payload-Size"
SHA256_HEADER: Final = "X-Durable-Workflow-Payload-SHA256"

_FIELDS: Final = frozenset({"schema", "reference_id", "codec", "size_bytes", "sha256"})
_REFERENCE_ID: Final = re.compile(r"ep_[0-9A-HJKMNP-TV-Z]{26}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_DEPTH: Final = 250
_BARE: Final = {"record_side_effect": "result", "start_service_operation": "request_payload"}
"""The commands that carry a payload as a bare blob, and in which field."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Names one stored payload, with what its bytes must be. Its fields are those of the wire, in their order."""

    schema: str
    reference_id: str
    codec: str
    size_bytes: int
    sha256: str

    def headers(self) -> dict[str, str]:
        """Give the headers that go with the bytes in either direction."""
        return integrity_headers(self.size_bytes, self.sha256)

    def check(self, content: bytes) -> str:
        """Give the blob in fetched bytes; raises ExternalPayloadRejected unless they are the ones that are meant."""
        if len(content) != self.size_bytes:
            raise self._mismatch(f"it has {len(content)} bytes instead of {self.size_bytes}")
        if _sha256(content) != self.sha256:
            raise self._mismatch("its SHA-256 is another one")
        try:
            return content.decode("ascii")
        except UnicodeDecodeError as exc:
            raise self._mismatch("it is not the text of a payload") from exc

    def _mismatch(self, what: str) -> ExternalPayloadRejected:
        return ExternalPayloadRejected(
            f"the stored payload {self.reference_id} is not what its reference says: {what}",
            reason="external_payload_integrity_mismatch",
        )


@dataclass(frozen=True, slots=True)
class External:
    """A payload field that holds a reference; its fields are those of the wire envelope."""

    codec: str
    external_payload: Reference


Payload = str | External
"""A payload as it is kept: the text of its blob, or the reference to it."""


@dataclass(frozen=True, slots=True)
class ExternalTerms:
    """What a namespace offers. Payloads whose blob is larger than `threshold` bytes are stored outside."""

    threshold: int
    max_bytes: int
    request_seconds: float
    available: bool


def read_external_terms(cluster_info: Mapping[str, Any]) -> ExternalTerms | None:
    """Read what the namespace of a discovery body offers; None when it stores no payloads (transport.md §5.1).

    Raises ExternalPayloadUnsupported for a transport that is offered and not the one we know.
    """
    policy = _mapping(_mapping(cluster_info, "namespace"), "external_payload_storage")
    transport = _mapping(policy, "transport")
    server = _mapping(_mapping(cluster_info, "worker_protocol"), "server_capabilities")
    if not policy or not (server.get(CAPABILITY) is True or transport.get("schema") == TRANSPORT_SCHEMA):
        return None
    known = {
        "schema": TRANSPORT_SCHEMA,
        "version": 1,
        "reference_schema": REFERENCE_SCHEMA,
        "mode": TRANSPORT_MODE,
    }
    upload, fetch = _mapping(transport, "upload"), _mapping(transport, "fetch")
    ways = (upload.get("method"), upload.get("path"), fetch.get("method"), fetch.get("path_template"))
    if any(transport.get(key) != value or isinstance(transport.get(key), bool) for key, value in known.items()):
        raise ExternalPayloadUnsupported("the transport of external payloads has an unknown schema, version or mode")
    if ways != ("POST", f"/api{ROOT}", "GET", f"/api{ROOT}/{{referenceId}}"):
        raise ExternalPayloadUnsupported("the transport of external payloads uses unknown paths")
    limits = _mapping(transport, "limits")
    threshold, most = policy.get("threshold_bytes"), limits.get("max_payload_bytes")
    seconds = limits.get("request_timeout_seconds")
    if not isinstance(threshold, int) or not isinstance(most, int) or isinstance(threshold, bool):
        raise ExternalPayloadUnsupported("the limits of external payloads are not whole numbers")
    if not 1 <= threshold <= most:
        raise ExternalPayloadUnsupported("the limits of external payloads are not 1 <= threshold <= max_payload_bytes")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise ExternalPayloadUnsupported("the request timeout of external payloads is not a number above 0")
    return ExternalTerms(threshold, most, float(seconds), available=policy.get("status") == "available")


def reference_to(reference_id: str, content: bytes) -> Reference:
    """Give the reference to bytes that are stored under an id."""
    return Reference(REFERENCE_SCHEMA, reference_id, CODEC, len(content), _sha256(content))


def integrity_headers(size_bytes: int, sha256: str) -> dict[str, str]:
    """Give the headers that say what the bytes of a payload must be."""
    return {CODEC_HEADER: CODEC, SIZE_HEADER: str(size_bytes), SHA256_HEADER: sha256}


def is_sha256(text: object) -> bool:
    """Tell whether this is a SHA-256 as it is written on the wire."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def read_reference(field: object) -> Reference:
    """Read a reference strictly: exactly its five keys. Raises ExternalPayloadUnsupported for anything else."""
    if not isinstance(field, Mapping) or set(field) != _FIELDS:
        raise ExternalPayloadUnsupported(f"a reference has exactly the keys {', '.join(sorted(_FIELDS))}")
    size, digest, identity = field["size_bytes"], field["sha256"], field["reference_id"]
    if field["schema"] != REFERENCE_SCHEMA or field["codec"] != CODEC:
        raise ExternalPayloadUnsupported("the schema or the codec of a reference is not known")
    if not isinstance(identity, str) or _REFERENCE_ID.fullmatch(identity) is None:
        raise ExternalPayloadUnsupported("the reference_id of a reference is malformed")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ExternalPayloadUnsupported("the size_bytes of a reference is not a whole number >= 0")
    if not is_sha256(digest):
        raise ExternalPayloadUnsupported("the sha256 of a reference is not 64 lower-case hex digits")
    return Reference(REFERENCE_SCHEMA, identity, CODEC, size, digest)


def read_envelope(field: Mapping[str, Any]) -> External:
    """Read an envelope that holds a reference, exactly its two keys; raises ExternalPayloadUnsupported."""
    if set(field) != {"codec", KEY} or field["codec"] != CODEC:
        raise ExternalPayloadUnsupported(f'an external payload has the keys "codec" ("avro") and "{KEY}", nothing else')
    return External(CODEC, read_reference(field[KEY]))


def to_wire(payload: Payload) -> dict[str, Any]:
    """Give the envelope of a payload."""
    if isinstance(payload, str):
        return {"codec": CODEC, "blob": payload}
    return {"codec": payload.codec, KEY: asdict(payload.external_payload)}


def inline_blobs(value: object) -> Iterator[str]:
    """Give the blobs of the inline payloads inside commands, a descriptor or a report, in the order they are met.

    A memo's is not among them: its entries go inline always (payloads.md §5).
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            bare = item.get(_bare_field(item))
            if isinstance(bare, str):
                yield bare
            if _is_inline(item):
                yield item["blob"]
            elif item.get("type") != "upsert_memo":
                pending.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))


def with_references(value: Any, stored: Mapping[str, Reference]) -> Any:
    """Give a value with the payloads whose blobs are `stored` replaced by their references; the rest is shared."""
    if isinstance(value, Mapping):
        if _is_inline(value):
            reference = stored.get(value["blob"])
            return value if reference is None else to_wire(External(CODEC, reference))
        if value.get("type") == "upsert_memo":
            return value
        changed = {key: after for key, item in value.items() if (after := with_references(item, stored)) is not item}
        name = _bare_field(value)
        bare = value.get(name)
        if isinstance(bare, str) and bare in stored:
            changed[name] = to_wire(External(CODEC, stored[bare]))
        return {**value, **changed} if changed else value
    if isinstance(value, list | tuple):
        replaced = [with_references(item, stored) for item in value]
        return replaced if any(one is not other for one, other in zip(replaced, value, strict=True)) else value
    return value


def is_small(payload: Payload | None, limit: int) -> bool:
    """Tell whether a payload takes at most `limit` bytes where it is repeated; a reference always does."""
    return not isinstance(payload, str) or len(payload) <= limit


def digest(payload: Payload) -> str:
    """Give what a payload is known by, wherever it is kept: the SHA-256 of its blob."""
    return payload.external_payload.sha256 if isinstance(payload, External) else _sha256(payload.encode())


def references_in(value: object) -> Iterator[Reference]:
    """Give every reference inside a JSON value; raises ExternalPayloadUnsupported for a malformed one.

    Like every reader of the protocol it takes any object with the key ``external_payload`` for one.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            if KEY in item:
                yield read_envelope(item).external_payload
            else:
                pending.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))


def with_blobs(value: Any, blobs: Mapping[Reference, str], *, depth: int = 0) -> Any:
    """Give a JSON value with every reference replaced by the inline envelope of its blob; the rest is shared.

    Raises ExternalPayloadUnsupported for a value that nests deeper than any of the protocol does.
    """
    if depth > _MAX_DEPTH:
        raise ExternalPayloadUnsupported(f"a reference lies in a value that nests deeper than {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        if KEY in value:
            return {"codec": CODEC, "blob": blobs[read_envelope(value).external_payload]}
        changed = {
            key: after for key, item in value.items() if (after := with_blobs(item, blobs, depth=depth + 1)) is not item
        }
        return {**value, **changed} if changed else value
    if isinstance(value, list | tuple):
        replaced = [with_blobs(item, blobs, depth=depth + 1) for item in value]
        return replaced if any(one is not other for one, other in zip(replaced, value, strict=True)) else value
    return value


def _bare_field(command: Mapping[str, Any]) -> str:
    kind = command.get("type")
    return _BARE.get(kind, "") if isinstance(kind, str) else ""


def _is_inline(item: Mapping[str, Any]) -> bool:
    return set(item) == {"codec", "blob"} and item["codec"] == CODEC and isinstance(item["blob"], str)


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
