"""Wire timestamps: the one text form that is written, and the forms that are read (transport.md §2).

Everything written is UTC with six fractional digits and ``Z``. Reading accepts what prepared-local.md §3 allows:
any number of fractional digits, ``Z`` or an offset; a timezone is required. Turning instants into local deadlines is
`proctor.core.authority`'s work, not this module's.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_FORM = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:(Z)|([+-])(\d\d):(\d\d))", re.ASCII)


def format_instant(instant: datetime) -> str:
    """Give the wire text of `instant`, for example ``2026-10-02T00:00:00.000000Z``.

    Raises ValueError for a datetime without a timezone.
    """
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs a timezone, {instant!r} has none")
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def parse_instant(text: object) -> datetime:
    """Read a wire timestamp into an aware UTC datetime; digits beyond microseconds are cut.

    Raises ValueError for anything that is not a string of the exact form with a timezone.
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not a timestamp with timezone: {text!r}")
    year, month, day, hour, minute, second, fraction, _, sign, off_hours, off_minutes = match.groups()
    zone: timezone = UTC
    if sign is not None:
        offset = timedelta(hours=int(off_hours), minutes=int(off_minutes))
        zone = timezone(offset if sign == "+" else -offset)
    micro = int((fraction or "")[:6].ljust(6, "0"))
    moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), micro, zone)
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError(f"timestamp out of range: {text!r}") from exc
