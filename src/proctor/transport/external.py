"""Storing large payloads outside of requests, and fetching what references mean (transport.md §5.1).

One object for each connection of a worker or client. What is to be stored and what a reference looks like is
`proctor.core.external`; how long a transfer may go on, and what its failure means, is the caller's to say.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import structlog
import trio

from proctor.core.external import (
    ROOT,
    UPLOAD_SCHEMA,
    ExternalTerms,
    Reference,
    inline_blobs,
    integrity_headers,
    read_reference,
    references_in,
    with_blobs,
    with_references,
)
from proctor.core.wire.fields import Fields
from proctor.errors import (
    ExternalPayloadRejected,
    ExternalPayloadUnsupported,
    ProtocolBreach,
    ServerRefused,
)
from proctor.transport.calls import Answer, Call, Plane, Transport, accepted, segment
from proctor.transport.retrying import TRIES

_KEPT_BYTES = 64 * 1024 * 1024
_REUSED_SECONDS = 60.0
"""How long an upload serves further requests: a payload that nothing refers to is not kept for ever by the server."""
_SECTION = "transport §5.1"
_FINAL = frozenset(
    {
        "external_payload_not_found",
        "external_payload_expired",
        "external_payload_oversized",
        "external_payload_unsupported",
        "external_payload_integrity_mismatch",
    }
)

_log = structlog.get_logger("proctor.payloads")


class ExternalPayloads:
    """The stored payloads of one namespace. `terms` None: it stores none, and no reference can be read.

    Blobs that were sent or fetched are kept up to a bound, because a history is read more often than once.
    """

    def __init__(self, transport: Transport, plane: Plane, terms: ExternalTerms | None) -> None:
        self._transport = transport
        self._plane: Plane = plane
        self._terms = terms
        self._blobs: OrderedDict[Reference, str] = OrderedDict()
        self._references: dict[str, tuple[Reference, float]] = {}
        self._size = 0

    def goes_outside(self, blob: str) -> bool:
        """Tell whether a blob is to be stored outside."""
        return self._terms is not None and self._terms.available and len(blob) > self._terms.threshold

    async def offloaded(self, value: Any) -> Any:
        """Give a part of a request with its large payloads stored outside and replaced by references.

        Raises ExternalPayloadRejected for a payload that is too large for that, ServerRefused, ServerUnreachable and
        ProtocolBreach when one could not be stored: then nothing refers to it.
        """
        if self._terms is None or not self._terms.available:
            return value
        large = [blob for blob in inline_blobs(value) if self.goes_outside(blob)]
        if not large:
            return value
        return with_references(value, {blob: await self.stored(blob) for blob in dict.fromkeys(large)})

    async def stored(self, blob: str) -> Reference:
        """Store one blob outside; raises as `offloaded` does. The same blob is stored once."""
        if self._terms is None:
            raise ExternalPayloadUnsupported("this namespace stores no payloads")
        content = blob.encode("ascii")
        if len(content) > self._terms.max_bytes:
            raise ExternalPayloadRejected(
                f"a payload has {len(content)} bytes, this namespace stores at most {self._terms.max_bytes}; "
                "pass a reference to data that is stored elsewhere",
                reason="external_payload_oversized",
            )
        sha256 = hashlib.sha256(content).hexdigest()
        known, since = self._references.get(sha256, (None, 0.0))
        if known is not None and trio.current_time() - since < _REUSED_SECONDS:
            return known
        headers = integrity_headers(len(content), sha256)
        call = Call(self._plane, "POST", ROOT, content=content, headers=headers)
        answer = accepted(call, await self._transport.send(call, within=self._terms.request_seconds))
        reference = _read_upload(answer)
        if (reference.size_bytes, reference.sha256) != (len(content), sha256):
            raise ProtocolBreach("the receipt of an upload is about other bytes", rule=f"{_SECTION}.upload")
        self._forget_uploads()
        self._references[sha256] = (reference, trio.current_time())
        self._keep(reference, blob)
        return reference

    async def resolved(self, value: Any) -> Any:
        """Give a part of an answer with every reference replaced by the payload it means.

        Raises ExternalPayloadUnsupported and ExternalPayloadRejected (both PayloadError) for a reference that no
        repetition will make readable, ServerRefused and ServerUnreachable for one that could not be fetched now.
        """
        blobs: dict[Reference, str] = {}
        for reference in references_in(value):
            if reference not in blobs:
                blobs[reference] = await self._fetched(reference)
        return with_blobs(value, blobs) if blobs else value

    async def _fetched(self, reference: Reference) -> str:
        if self._terms is None:
            raise ExternalPayloadUnsupported(
                f"the payload {reference.reference_id} is stored outside, and the server does not say how to fetch it"
            )
        if reference.size_bytes > self._terms.max_bytes:
            raise ExternalPayloadRejected(
                f"the stored payload {reference.reference_id} has {reference.size_bytes} bytes, more than the "
                f"{self._terms.max_bytes} that this namespace stores",
                reason="external_payload_oversized",
            )
        known = self._blobs.get(reference)
        if known is not None:
            self._blobs.move_to_end(reference)
            return known
        tries = 0
        while True:
            tries += 1
            try:
                blob = await self._fetch(reference, self._terms)
            except ExternalPayloadRejected as exc:
                # Wrong bytes may be a fault of the way; the same wrong bytes again are what is stored.
                if exc.reason != "external_payload_integrity_mismatch" or tries >= TRIES:
                    raise
                _log.warning("payload_fetched_wrong", reference=reference.reference_id, problem=str(exc))
            else:
                self._keep(reference, blob)
                return blob

    async def _fetch(self, reference: Reference, terms: ExternalTerms) -> str:
        path = f"{ROOT}/{segment(reference.reference_id)}"
        # One byte more than it should have, so that too many are seen.
        call = Call(self._plane, "GET", path, headers=reference.headers(), most_bytes=reference.size_bytes + 1)
        try:
            answer = accepted(call, await self._transport.send(call, within=terms.request_seconds))
        except ServerRefused as exc:
            if exc.status < 500 and exc.reason in _FINAL:
                raise ExternalPayloadRejected(str(exc), reason=exc.reason) from exc
            raise
        stated = {name: answer.headers.get(name.lower()) for name in reference.headers()}
        if stated != reference.headers() or not isinstance(answer.body, bytes):
            raise ExternalPayloadRejected(
                f"the answer about the stored payload {reference.reference_id} describes other bytes",
                reason="external_payload_integrity_mismatch",
            )
        return reference.check(answer.body)

    def _forget_uploads(self) -> None:
        """Forget the uploads that serve no further request."""
        limit = trio.current_time() - _REUSED_SECONDS
        for sha256 in [name for name, (_, since) in self._references.items() if since < limit]:
            del self._references[sha256]

    def _keep(self, reference: Reference, blob: str) -> None:
        if len(blob) > _KEPT_BYTES or reference in self._blobs:
            return
        self._blobs[reference] = blob
        self._size += len(blob)
        while self._size > _KEPT_BYTES:
            _, gone = self._blobs.popitem(last=False)
            self._size -= len(gone)


def _read_upload(answer: Answer) -> Reference:
    fields = Fields(answer.body, what="upload", section=_SECTION)
    fields.exactly("schema", UPLOAD_SCHEMA, "upload")
    fields.exactly("transport_version", 1, "upload")
    try:
        return read_reference(fields.present("reference", "upload"))
    except ExternalPayloadUnsupported as exc:
        text = f"the receipt of an upload has no usable reference: {exc}"
        raise ProtocolBreach(text, rule=f"{_SECTION}.upload") from exc
