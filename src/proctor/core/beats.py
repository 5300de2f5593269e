"""Coalescing of one attempt's heartbeats: newest wins, first at once, rate limited, last one flushed. Pure.

Every heartbeat that is sent becomes an event of the run, so their number is bounded too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from proctor.core.codec import decode_bytes
from proctor.errors import PayloadError

MAX_DETAILS_BYTES = 64 * 1024
"""Largest JSON text of one heartbeat's details; larger ones are refused, the heartbeat itself is still
sent.
"""

MAX_RECORDED = 1000
"""Heartbeats sent for one attempt that has no heartbeat timeout; further ones are counted as dropped."""

_DEFAULT_INTERVAL_SECONDS = 5.0
_MAX_INTERVAL_SECONDS = 10.0


class Beats:
    """The heartbeats of one attempt on their way to the server. Times are seconds of the caller's clock."""

    def __init__(self, *, heartbeat_timeout: int | None) -> None:
        self._bounded = heartbeat_timeout is None
        self.interval = (
            _DEFAULT_INTERVAL_SECONDS
            if heartbeat_timeout is None
            else min(_MAX_INTERVAL_SECONDS, heartbeat_timeout / 3)
        )
        self._newest: bytes | None = None
        self._next_at: float | None = None
        self.sent = 0
        self.dropped = 0

    def offer(self, payload: bytes) -> None:
        """Take a heartbeat of the child; an older one that was not sent is dropped and counted."""
        if self._newest is not None:
            self.dropped += 1
        if self._bounded and self.sent >= MAX_RECORDED:
            self.dropped += 1
            self._newest = None
            return
        self._newest = payload

    def due_at(self, now: float) -> float | None:
        """Give the instant at which the newest heartbeat is to be sent; None when there is nothing to
        send.
        """
        if self._newest is None:
            return None
        return now if self._next_at is None else max(now, self._next_at)

    def take(self, now: float) -> bytes | None:
        """Take the newest heartbeat for sending now; None when there is none."""
        payload, self._newest = self._newest, None
        if payload is not None:
            self._next_at = now + self.interval
            self.sent += 1
        return payload

    def give_back(self, payload: bytes) -> None:
        """Put a heartbeat back whose sending failed, unless a newer one has come meanwhile."""
        self.sent -= 1
        if self._newest is None:
            self._newest = payload
        else:
            self.dropped += 1


def details_of(payload: bytes) -> Mapping[str, Any]:
    """Read the details that a child sent with a heartbeat; None counts as no details.

    The bytes come from a child and are hostile. Raises PayloadError when they are no map of JSON values or
    too large.
    """
    details = decode_bytes(payload)
    if details is None:
        return {}
    if not isinstance(details, dict):
        raise PayloadError("invalid_heartbeat_details", f"heartbeat details are a {type(details).__name__}, not a dict")
    try:
        size = len(json.dumps(details, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise PayloadError("invalid_heartbeat_details", f"heartbeat details have no JSON form: {exc}") from exc
    if size > MAX_DETAILS_BYTES:
        raise PayloadError("invalid_heartbeat_details", f"heartbeat details are {size} bytes of JSON")
    return details
