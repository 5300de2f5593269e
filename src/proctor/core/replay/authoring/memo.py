"""Memo entries: which are allowed, and their canonical form (payloads.md §9).

A memo upsert is compared with history by its canonical blob: keys sorted at every level, types kept, so 7.0 is not 7.
"""

from __future__ import annotations

import binascii
import dataclasses
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from proctor.core import codec
from proctor.errors import PayloadError

_KEY: Final = re.compile(r"(?!-?[0-9]+\Z)[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_MAX_ENTRIES: Final = 100
_MAX_VALUE_BYTES: Final = 10_240
_MAX_TOTAL_BYTES: Final = 65_536


def canonical_memo(entries: Mapping[str, Any], *, may_be_empty: bool = False) -> dict[str, Any]:
    """Give the entries in canonical form.

    Datetimes, UUIDs, Decimals, enums, dataclasses and tuples become plain values. Raises ValueError for a wrong key
    or too much data, TypeError or PayloadError for a value without a wire form.
    """
    if not isinstance(entries, Mapping):
        raise TypeError(f"memo entries are a mapping, not {type(entries).__qualname__}")
    if not entries and not may_be_empty:
        raise ValueError("a memo upsert has at least one entry")
    if len(entries) > _MAX_ENTRIES:
        raise ValueError(f"a memo upsert has at most {_MAX_ENTRIES} entries, not {len(entries)}")
    canonical: dict[str, Any] = {}
    for key, value in entries.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"memo key {key!r} is not 1 to 64 of A-Z a-z 0-9 _ . : - with more than digits")
        canonical[key] = _plain(value)
        if _size(canonical[key]) > _MAX_VALUE_BYTES:
            raise ValueError(f"the memo value of {key!r} is larger than {_MAX_VALUE_BYTES} bytes")
    canonical = {key: canonical[key] for key in sorted(canonical)}
    if _size(canonical) > _MAX_TOTAL_BYTES:
        raise ValueError(f"the memo entries are larger than {_MAX_TOTAL_BYTES} bytes together")
    return canonical


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        codec.encode(value)
        return value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise PayloadError("invalid_map_key", "memo maps have text keys")
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, bytearray):
        return [_plain(item) for item in value]
    raise TypeError(f"a memo value cannot be {type(value).__qualname__}")


def _size(value: object) -> int:
    return len(binascii.a2b_base64(codec.encode(value)))
