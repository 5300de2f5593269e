"""The Avro datum of one `Value`: plain Python values to bytes and back (payloads.md §3, §4).

It owns the one fixed schema, a union whose index byte says which branch follows, and nothing beyond the datum:
frame, base64 and envelopes belong to `proctor.core.codec`. The schema is written out by hand because a general Avro
library costs every child its import, is slower on values like ours, and crashes on hostile nesting. Every process
loads this, so it needs the standard library only.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeAlias

from proctor.errors import PayloadError, UnsupportedValueError

MAX_NESTING: Final = 200
"""Deepest nesting of lists and dicts that is encoded or decoded; the wire format itself names no limit.

Both directions recurse once per level, so this bounds their use of the stack too.
"""

# The union index of each branch as the wire spells it (zig-zag): a fixed part of the schema's fingerprint.
_NULL: Final = 0x00
_BOOLEAN: Final = 0x02
_LONG: Final = 0x04
_DOUBLE: Final = 0x06
_BYTES: Final = 0x08
_STRING: Final = 0x0A
_ARRAY: Final = 0x0C
_MAP: Final = 0x0E
_END: Final = 0x00  # the empty block that closes an array or a map

_DOUBLE_BRANCH: Final = Struct("<Bd")
_DOUBLE_CONTENT: Final = Struct("<d")
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_VARINT_SIZE: Final = 10  # bytes, of seven bits each: the most that 64 bits need

# Index or key in each container that is being written, outermost first: the depth, and the place that errors name.
_Path: TypeAlias = list[object]
_Writer: TypeAlias = Callable[[bytearray, Any, _Path], None]


def write_datum(out: bytearray, value: object) -> None:
    """Append the datum of `value` to `out`; after an error, what was appended is of no use.

    Raises PayloadError with category ``integer_overflow``, ``non_finite_float``, ``invalid_map_key`` or
    ``nesting_too_deep``; UnsupportedValueError (``unsupported_value_type``); UnicodeEncodeError (payloads.md §8).
    """
    _WRITERS.get(type(value), _write_other)(out, value, [])


def read_datum(data: bytes, start: int) -> Any:
    """Give the value of the datum that fills `data` from `start` to its end.

    Raises PayloadError with category ``invalid_payload_framing`` for anything else (payloads.md §7). No memory is
    taken for an announced length before the bytes for it are seen to be there.
    """
    try:
        value, at = _read_value(data, start, 0)
    except IndexError as exc:  # only single bytes are read by index, so this says that there is no further one
        raise _ends_too_early() from exc
    except UnicodeDecodeError as exc:
        raise _malformed(f"a text of the Avro datum is not UTF-8 ({exc.reason})") from exc
    if at != len(data):
        raise _malformed(f"{len(data) - at} bytes follow the Avro datum")
    return value


def _write_null(out: bytearray, value: None, path: _Path) -> None:
    out.append(_NULL)


def _write_boolean(out: bytearray, value: bool, path: _Path) -> None:
    out.append(_BOOLEAN)
    out.append(value)


def _write_long(out: bytearray, value: int, path: _Path) -> None:
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise PayloadError("integer_overflow", f"{_place(path)} does not fit in a signed 64-bit integer")
    out.append(_LONG)
    _write_varint(out, (value << 1) ^ (value >> 63))


def _write_double(out: bytearray, value: float, path: _Path) -> None:
    if not math.isfinite(value):
        raise PayloadError("non_finite_float", f"{_place(path)} is {value!r}")
    out += _DOUBLE_BRANCH.pack(_DOUBLE, value)


def _write_bytes(out: bytearray, value: bytes, path: _Path) -> None:
    out.append(_BYTES)
    _write_varint(out, len(value) << 1)
    out += value


def _write_string(out: bytearray, value: str, path: _Path) -> None:
    out.append(_STRING)
    text = value.encode()
    _write_varint(out, len(text) << 1)
    out += text


def _write_array(out: bytearray, value: list[Any], path: _Path) -> None:
    _enter(path)
    out.append(_ARRAY)
    items = value.copy()  # the count is written first, and another thread may change the list meanwhile
    if items:
        _write_varint(out, len(items) << 1)
    for position, item in enumerate(items):
        path[-1] = position
        _WRITERS.get(type(item), _write_other)(out, item, path)
    out.append(_END)
    path.pop()


def _write_map(out: bytearray, value: dict[Any, Any], path: _Path) -> None:
    _enter(path)
    out.append(_MAP)
    entries = value.copy()  # as in `_write_array`
    if entries:
        _write_varint(out, len(entries) << 1)
    for key, item in entries.items():
        if not isinstance(key, str):
            path.pop()
            raise PayloadError("invalid_map_key", f"{_place(path)} has a key of type {_type_name(key)}, not str")
        path[-1] = key
        text = str.encode(key)
        _write_varint(out, len(text) << 1)
        out += text
        _WRITERS.get(type(item), _write_other)(out, item, path)
    out.append(_END)
    path.pop()


def _write_other(out: bytearray, value: object, path: _Path) -> None:
    """Write an instance of a subclass as its plain base (payloads.md §4: enums, for one) or refuse the type."""
    # Through the base's own methods where a subclass may answer otherwise: the text of an enum is its name.
    if isinstance(value, int):
        _write_long(out, int.__int__(value), path)
    elif isinstance(value, str):
        _write_string(out, str.__str__(value), path)
    elif isinstance(value, float):
        _write_double(out, float.__float__(value), path)
    elif isinstance(value, bytes):
        _write_bytes(out, bytes(memoryview(value)), path)
    elif isinstance(value, list):
        _write_array(out, list(value), path)
    elif isinstance(value, dict):
        _write_map(out, dict(value), path)
    else:
        raise UnsupportedValueError(
            "unsupported_value_type",
            f"{_place(path)} is a {_type_name(value)}; payloads hold None, bool, int, float, str, bytes, list and dict",
        )


_WRITERS: Final[dict[type, _Writer]] = {
    type(None): _write_null,
    bool: _write_boolean,
    int: _write_long,
    float: _write_double,
    bytes: _write_bytes,
    str: _write_string,
    list: _write_array,
    dict: _write_map,
}


def _write_varint(out: bytearray, raw: int) -> None:
    """Append a long that is already zig-zag: not negative."""
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _enter(path: _Path) -> None:
    if len(path) == MAX_NESTING:
        raise PayloadError("nesting_too_deep", f"lists and dicts are nested more than {MAX_NESTING} deep")
    path.append(None)


def _place(path: _Path) -> str:
    return "the value" + "".join(f"[{reprlib.repr(step)}]" for step in path)


def _type_name(value: object) -> str:
    return type(value).__qualname__


def _read_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Read one value that starts at `at` and is inside `depth` containers; give it and where the next byte is."""
    branch = data[at]
    at += 1
    if branch > 0x7F:  # not the shortest spelling of the index, which Avro allows
        index, at = _read_long(data, at - 1)
        branch = index << 1
    if branch == _STRING:
        text, at = _read_bytes(data, at)
        return text.decode(), at
    if branch == _LONG:
        return _read_long(data, at)
    if branch == _MAP:
        return _read_map(data, at, depth + 1)
    if branch == _ARRAY:
        return _read_array(data, at, depth + 1)
    if branch == _NULL:
        return None, at
    if branch == _BOOLEAN:
        return data[at] != 0, at + 1
    if branch == _DOUBLE:
        return _read_double(data, at)
    if branch == _BYTES:
        return _read_bytes(data, at)
    raise _malformed(f"the Avro datum names a value type that does not exist, at byte {at - 1}")


def _read_array(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    count, at = _read_block_count(data, at, depth)
    while count:
        for _ in range(count):
            item, at = _read_value(data, at, depth)
            items.append(item)
        count, at = _read_block_count(data, at, depth)
    return items, at


def _read_map(data: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    entries: dict[str, Any] = {}
    count, at = _read_block_count(data, at, depth)
    while count:
        for _ in range(count):
            key, at = _read_bytes(data, at)
            entries[key.decode()], at = _read_value(data, at, depth)
        count, at = _read_block_count(data, at, depth)
    return entries, at


def _read_block_count(data: bytes, at: int, depth: int) -> tuple[int, int]:
    if depth > MAX_NESTING:
        raise _malformed(f"lists and dicts of the Avro datum are nested more than {MAX_NESTING} deep")
    count, at = _read_long(data, at)
    if count < 0:
        count = -count
        _, at = _read_long(data, at)  # the block's size is for skipping it; the reference takes a wrong one as well
    if count > len(data) - at:  # an item is one byte at least
        raise _ends_too_early()
    return count, at


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    end = at + _DOUBLE_CONTENT.size
    if end > len(data):
        raise _ends_too_early()
    value: float = _DOUBLE_CONTENT.unpack_from(data, at)[0]
    if not math.isfinite(value):
        raise _malformed(f"a payload cannot hold {value!r}")
    return value, end


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size = data[at] >> 1
    if data[at] & 0x81:  # not one of the sizes below 64, which nearly all are
        size, at = _read_long(data, at)
    else:
        at += 1
    end = at + size
    if size < 0:
        raise _malformed(f"a text or bytes of the Avro datum announces {size} bytes")
    if end > len(data):
        raise _ends_too_early()
    return data[at:end], end


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    raw = byte & 0x7F
    if byte > 0x7F:
        for shift in range(7, 7 * _VARINT_SIZE, 7):
            byte = data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
        if byte > 0x7F or raw >> 64:
            raise _malformed("an integer of the Avro datum is longer than 64 bits")
    return (raw >> 1) ^ -(raw & 1), at


def _ends_too_early() -> PayloadError:
    return _malformed("the Avro datum ends too early")


def _malformed(detail: str) -> PayloadError:
    return PayloadError("invalid_payload_framing", detail)
