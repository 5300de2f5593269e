"""Identifiers the server gives out: ULIDs for rows and events, hex tokens for registrations.

The pure part takes time and randomness as arguments; `Ids` feeds it from the system and is replaced in tests.
"""

from __future__ import annotations

import os
from datetime import datetime

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


_RANDOM_BITS = 80
_TIME_BITS = 48


def ulid_number(milliseconds: int, randomness: bytes) -> int:
    """Give a ULID as a number, from a Unix time in milliseconds and 10 bytes of randomness.

    Raises ValueError when the time does not fit into 48 bits or the randomness has another length.
    """
    if not 0 <= milliseconds < 1 << _TIME_BITS:
        raise ValueError(f"a ULID holds 48 bits of milliseconds, got {milliseconds}")
    if len(randomness) != _RANDOM_BITS // 8:
        raise ValueError(f"a ULID needs 10 random bytes, got {len(randomness)}")
    return milliseconds << _RANDOM_BITS | int.from_bytes(randomness, "big")


def ulid_text(number: int) -> str:
    """Give the 26 characters of a ULID."""
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def is_ulid(text: str) -> bool:
    """Say whether a text has the form of a ULID."""
    return len(text) == 26 and all(character in _ALPHABET for character in text)


class Ids:
    """The system's source of fresh identifiers. ULIDs ascend, also within one millisecond, so they sort by age."""

    def __init__(self) -> None:
        self._last = 0

    def ulid(self, now: datetime) -> str:
        """Give a new row or event id made at `now`, larger than every one given before."""
        milliseconds = int(now.timestamp() * 1000)
        if milliseconds <= self._last >> _RANDOM_BITS:
            self._last += 1
        else:
            self._last = ulid_number(milliseconds, os.urandom(10))
        return ulid_text(self._last)

    def token(self) -> str:
        """Give a new registration token: 32 lower-case hex digits (worker.md §1.1)."""
        return os.urandom(16).hex()
