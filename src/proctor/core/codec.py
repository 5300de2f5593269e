"""The payload codec: Python values to Avro blobs and back, and the JSON shapes that carry them (payloads.md).

It owns the one wire codec ``avro`` at the level of a payload: codec names, envelopes, base64, the ten framing bytes,
and the refusals with their stable categories. The bytes of the value itself are `proctor.core.datum`. Size limits,
offloading and fetching of external payloads are left to the callers.
"""

from __future__ import annotations

import binascii
import reprlib
from collections.abc import Mapping
from typing import Any, Final

from proctor.core.datum import MAX_NESTING as MAX_NESTING
from proctor.core.datum import read_datum, write_datum
from proctor.errors import ExternalPayloadUnsupported, PayloadError

CODEC: Final = "avro"

_FRAME: Final = bytes.fromhex("c301e2a33dff55802237")  # single-object marker, then the schema's fingerprint
_MARKER_SIZE: Final = 2


def encode(value: object) -> str:
    """Give the base64 blob of one value.

    Raises PayloadError with category ``integer_overflow``, ``non_finite_float``, ``invalid_map_key`` or
    ``nesting_too_deep``; UnsupportedValueError (``unsupported_value_type``) for a type without a wire form;
    Python's own UnicodeEncodeError for text with a lone surrogate (payloads.md §8).
    """
    return binascii.b2a_base64(encode_bytes(value), newline=False).decode("ascii")


def decode(blob: str | None, codec: str | None = CODEC) -> Any:
    """Give the value of one bare blob that `codec` names; None without a blob is None.

    Raises PayloadError: ``unsupported_payload_codec``, ``unsupported_payload_schema`` or
    ``invalid_payload_framing`` (payloads.md §7).
    """
    if blob is None and codec is None:
        return None
    _require_avro(codec)
    if blob is None:
        return None
    if not isinstance(blob, str):
        raise PayloadError("invalid_payload_framing", f"a payload is base64 text, this is {_type_name(blob)}")
    try:
        framed = binascii.a2b_base64(blob, strict_mode=True)
    except ValueError as exc:
        if blob.lstrip()[:1] in tuple('{["'):
            hint = "it looks like JSON; JSON is not a payload codec"
        else:
            hint = "it is not strict base64 (RFC 4648, padded, without line breaks)"
        raise PayloadError("invalid_payload_framing", f"cannot read the payload: {hint}") from exc
    return decode_bytes(framed)


def envelope(value: object) -> dict[str, str]:
    """Give ``{"codec": "avro", "blob": ...}`` of one value; raises what `encode` raises."""
    return {"codec": CODEC, "blob": encode(value)}


def decode_value(field: object, fallback_codec: str | None) -> Any:
    """Give the value of a wire field: an envelope, a bare blob whose codec a sibling field names, or null.

    An envelope's own codec wins and is checked first, even without a blob (payloads.md §5, §7). Raises
    PayloadError as `decode` does, and ExternalPayloadUnsupported for a payload that is kept outside.
    """
    if not isinstance(field, Mapping) or "codec" not in field:
        return decode(field, fallback_codec)  # type: ignore[arg-type]  # hostile: decode refuses what is no text
    _require_avro(field["codec"])
    for key in ("external_payload", "external_storage"):
        if key in field:
            raise ExternalPayloadUnsupported(
                f"the payload is stored outside ({key}) and this codec reads inline payloads only"
            )
    if "blob" not in field:
        raise PayloadError("invalid_payload_framing", "the envelope has no blob")
    return decode(field["blob"], CODEC)


def decode_arguments(field: object, fallback_codec: str | None) -> list[Any]:
    """Give the positional arguments of an input field (payloads.md §6).

    No payload means no arguments; a payload that is not a list is the one argument. Raises as `decode_value`
    does.
    """
    value = decode_value(field, fallback_codec)
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def require_named(fields: Mapping[str, Any]) -> None:
    """Require that the codec beside a payload is ours, if one stands there; null is no codec (payloads.md §7)."""
    if "payload_codec" in fields:
        _require_avro(fields["payload_codec"])


def encode_bytes(value: object) -> bytes:
    """Give the framed datum without base64, as worker and child exchange it; raises as `encode` does."""
    framed = bytearray(_FRAME)
    write_datum(framed, value)
    return bytes(framed)


def decode_bytes(framed: bytes) -> Any:
    """Read what `encode_bytes` writes; raises PayloadError as `decode` does."""
    if len(framed) < len(_FRAME) or not framed.startswith(_FRAME[:_MARKER_SIZE]):
        raise PayloadError("invalid_payload_framing", "the Avro single-object marker is missing")
    if not framed.startswith(_FRAME):
        fingerprint = framed[_MARKER_SIZE : len(_FRAME)].hex()
        raise PayloadError("unsupported_payload_schema", f"unknown schema fingerprint {fingerprint}")
    return read_datum(framed, len(_FRAME))


def _require_avro(codec: object) -> None:
    if codec != CODEC:
        named = reprlib.repr(codec) if codec is None or isinstance(codec, str) else f"a {_type_name(codec)}"
        raise PayloadError("unsupported_payload_codec", f"{named} is not a payload codec, the only one is 'avro'")


def _type_name(value: object) -> str:
    return type(value).__qualname__
