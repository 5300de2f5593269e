"""The payload codec: Python values to Avro blobs and back, and the JSON shapes that carry them (payloads.md).

It owns the one wire codec ``avro``: the ten framing bytes, the recursive `Value` schema, the mapping of
Python types, and the refusals with their stable categories. Size limits, offloading and fetching of external
payloads are left to the callers.

The reader of fastavro recurses in C without a limit, so a small hostile blob of nested arrays would end the
whole process with SIGSEGV. Nesting is therefore bounded on both sides, and a datum that could be too deep is
measured before fastavro sees it.
"""

from __future__ import annotations

import binascii
import math
import reprlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, TypeAlias

import fastavro

from proctor.errors import ExternalPayloadUnsupported, PayloadError, UnsupportedValueError

CODEC: Final = "avro"
MAX_NESTING: Final = 200
"""Deepest nesting of lists and dicts that is encoded or decoded; the wire format itself names no limit."""

_NAMESPACE: Final = "durable_workflow.protocol"
_FRAME: Final = bytes.fromhex("c301e2a33dff55802237")  # single-object marker, then the schema's fingerprint
_MARKER_SIZE: Final = 2
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1

# Union order and every name are part of the fingerprint: never change them.
_BRANCHES: Final = (
    ("BooleanValue", "boolean", "boolean"),
    ("LongValue", "long", "long"),
    ("DoubleValue", "double", "double"),
    ("BytesValue", "bytes", "bytes"),
    ("StringValue", "string", "string"),
    ("ArrayValue", "items", {"type": "array", "items": f"{_NAMESPACE}.Value"}),
    ("MapValue", "entries", {"type": "map", "values": f"{_NAMESPACE}.Value"}),
)
_BOOLEAN, _LONG, _DOUBLE, _BYTES, _STRING, _ARRAY, _MAP = (f"{_NAMESPACE}.{name}" for name, _, _ in _BRANCHES)
_SCHEMA: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": f"{_NAMESPACE}.Value",
        "fields": [
            {
                "name": "value",
                "type": [
                    "null",
                    *(
                        {
                            "type": "record",
                            "name": f"{_NAMESPACE}.{name}",
                            "fields": [{"name": field, "type": kind}],
                        }
                        for name, field, kind in _BRANCHES
                    ),
                ],
            }
        ],
    }
)

# First bytes of every spelling of the array and map index that fastavro takes: plain, negative, not minimal.
_LEVEL_OPENERS: Final = bytes.fromhex("0c0e 0301 8c8e 8381")

_Path: TypeAlias = "tuple[_Path, object] | None"


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


def encode_bytes(value: object) -> bytes:
    """Give the framed datum without base64, as worker and child exchange it; raises as `encode` does."""
    stream = BytesIO()
    stream.write(_FRAME)
    fastavro.schemaless_writer(stream, _SCHEMA, _to_record(value, None, 0))
    return stream.getvalue()


def decode_bytes(framed: bytes) -> Any:
    """Read what `encode_bytes` writes; raises PayloadError as `decode` does."""
    if len(framed) < len(_FRAME) or not framed.startswith(_FRAME[:_MARKER_SIZE]):
        raise PayloadError("invalid_payload_framing", "the Avro single-object marker is missing")
    if not framed.startswith(_FRAME):
        fingerprint = framed[_MARKER_SIZE : len(_FRAME)].hex()
        raise PayloadError("unsupported_payload_schema", f"unknown schema fingerprint {fingerprint}")
    datum = framed[len(_FRAME) :]
    _check_nesting(datum)
    stream = BytesIO(datum)
    try:
        record = fastavro.schemaless_reader(stream, _SCHEMA, None)
    except (EOFError, IndexError, ValueError, OverflowError, MemoryError, TypeError) as exc:
        raise PayloadError("invalid_payload_framing", f"the Avro datum is malformed ({_type_name(exc)})") from exc
    if stream.tell() != len(datum):
        raise PayloadError("invalid_payload_framing", f"{len(datum) - stream.tell()} bytes follow the datum")
    return _from_record(record)


def _require_avro(codec: object) -> None:
    if codec != CODEC:
        named = reprlib.repr(codec) if codec is None or isinstance(codec, str) else f"a {_type_name(codec)}"
        raise PayloadError("unsupported_payload_codec", f"{named} is not a payload codec, the only one is 'avro'")


def _type_name(value: object) -> str:
    return type(value).__qualname__


def _place(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(f"[{step!r}]")
    return "the value" + "".join(reversed(steps))


def _to_record(value: object, path: _Path, depth: int) -> dict[str, Any]:
    """Name the union branch of each value, so that fastavro never guesses (it would take True for a long)."""
    if value is None:
        return {"value": None}
    if isinstance(value, bool):
        return {"value": (_BOOLEAN, {"boolean": value})}
    if isinstance(value, int):
        if not _LONG_MIN <= value <= _LONG_MAX:
            raise PayloadError("integer_overflow", f"{_place(path)} does not fit in a signed 64-bit integer")
        return {"value": (_LONG, {"long": int(value)})}
    if isinstance(value, str):
        return {"value": (_STRING, {"string": str.__str__(value)})}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError("non_finite_float", f"{_place(path)} is {value!r}")
        return {"value": (_DOUBLE, {"double": float(value)})}
    if isinstance(value, bytes):
        return {"value": (_BYTES, {"bytes": bytes(value)})}
    if not isinstance(value, (list, dict)):
        raise UnsupportedValueError(
            "unsupported_value_type",
            f"{_place(path)} is a {_type_name(value)}; payloads hold None, bool, int, float, str, bytes, list and dict",
        )
    if depth == MAX_NESTING:
        raise PayloadError("nesting_too_deep", f"lists and dicts are nested more than {MAX_NESTING} deep")
    if isinstance(value, list):
        items = [_to_record(item, (path, index), depth + 1) for index, item in enumerate(value)]
        return {"value": (_ARRAY, {"items": items})}
    entries: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise PayloadError("invalid_map_key", f"{_place(path)} has a key of type {_type_name(key)}, not str")
        entries[str.__str__(key)] = _to_record(item, (path, key), depth + 1)
    return {"value": (_MAP, {"entries": entries})}


def _from_record(record: Any) -> Any:
    branch = record["value"]
    if branch is None:
        return None
    ((field, value),) = branch.items()
    if field == "items":
        return [_from_record(item) for item in value]
    if field == "entries":
        return {key: _from_record(item) for key, item in value.items()}
    if field == "double" and not math.isfinite(value):
        raise PayloadError("invalid_payload_framing", f"a payload cannot hold {value!r}")
    return value


def _check_nesting(datum: bytes) -> None:
    """Refuse a datum nested deeper than `MAX_NESTING`, without recursion and before fastavro reads it."""
    # Every level costs one of these bytes, so few of them prove a shallow datum without a walk.
    if len(datum) - len(datum.translate(None, _LEVEL_OPENERS)) <= MAX_NESTING:
        return
    try:
        _walk(datum)
    except IndexError as exc:
        raise PayloadError("invalid_payload_framing", "the Avro datum ends too early") from exc


def _walk(datum: bytes) -> None:
    # `branch` is the union index; arrays and maps (6, 7) open a level of [items left, is a map].
    levels: list[list[int]] = []
    at = 0
    while True:
        branch, at = _read_varint(datum, at)
        if branch in (6, 7):
            if len(levels) == MAX_NESTING:
                raise PayloadError("invalid_payload_framing", f"nested more than {MAX_NESTING} deep")
            levels.append([0, branch == 7])
        elif branch in (4, 5):
            at = _skip_text(datum, at)
        elif branch == 2:
            _, at = _read_varint(datum, at)
        elif branch in (0, 1, 3):
            at += (0, 1, 0, 8)[branch]
        else:
            raise PayloadError("invalid_payload_framing", f"the value type {branch} does not exist")
        while levels and levels[-1][0] == 0:
            count, at = _read_varint(datum, at)
            if count < 0:  # the block also says its size in bytes, which we have no use for
                _, at = _read_varint(datum, at)
            if count:
                levels[-1][0] = abs(count)
            else:
                levels.pop()
        if not levels:
            return
        levels[-1][0] -= 1
        if levels[-1][1]:
            at = _skip_text(datum, at)


def _skip_text(datum: bytes, at: int) -> int:
    size, at = _read_varint(datum, at)
    if size < 0 or size > len(datum) - at:
        raise PayloadError("invalid_payload_framing", f"a text of {size} bytes does not fit in the datum")
    return at + size


def _read_varint(datum: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = datum[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if raw >> 64:
        raise PayloadError("invalid_payload_framing", "an integer of the Avro datum is longer than 64 bits")
    return (raw >> 1) ^ -(raw & 1), at
