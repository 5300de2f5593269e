"""Reading session options: strictly in a command, a little more freely in a create request (sessions.md §2)."""

from __future__ import annotations

import re

from proctor.server.rules.commands.options import LONGEST_SECONDS
from proctor.server.rules.fields import Fields
from proctor.server.rules.sessions.shapes import SessionOptions

_LONGEST_TEXT = 255
_DIGITS = re.compile(r"[0-9]{1,15}")


def read_command(reader: Fields) -> SessionOptions | None:
    """Read the `worker_session` of a command; None when it names none."""
    body = reader.optional_object("worker_session")
    if body is None:
        return None
    options = Fields(body, f"{reader.prefix}worker_session.", reader.errors)
    return _read(options, session_id=options.text("session_id").strip(), digits=False)


def read_request(fields: Fields) -> SessionOptions:
    """Read the body of a create request; a blank session id is left to the caller, who has a reason of its own for it.

    Numbers may be strings of digits here, and switches 1 or 0.
    """
    given = fields.body.get("session_id")
    is_blank = isinstance(given, str) and len(given) <= _LONGEST_TEXT and not given.strip()
    return _read(fields, session_id="" if is_blank else fields.text("session_id").strip(), digits=True)


def _read(fields: Fields, *, session_id: str, digits: bool) -> SessionOptions:
    return SessionOptions(
        session_id=session_id,
        connection=_trimmed(fields, "connection"),
        queue=_trimmed(fields, "queue"),
        requirements=_requirements(fields),
        lease_seconds=read_positive(fields, "lease_seconds", digits=digits),
        ttl_seconds=read_positive(fields, "ttl_seconds", digits=digits),
        max_concurrent_activities=read_positive(fields, "max_concurrent_activities", digits=digits),
        create_if_missing=_flag(fields, "create_if_missing", digits=digits),
        allow_reacquire_after_failure=_flag(fields, "allow_reacquire_after_failure", digits=digits),
    )


def _trimmed(fields: Fields, name: str) -> str | None:
    text = fields.optional_text(name)
    return None if text is None else text.strip()


def _requirements(fields: Fields) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.strip() for text in fields.texts("requirements")))
    if any(len(text) > _LONGEST_TEXT for text in found):
        fields.wrong("requirements", f"each may have at most {_LONGEST_TEXT} characters")
        return ()
    return found


def read_positive(fields: Fields, name: str, *, digits: bool) -> int | None:
    """Read a positive integer, with `digits` also from a string of digits."""
    value = fields.body.get(name)
    if digits and isinstance(value, str) and _DIGITS.fullmatch(value):
        fields = Fields({name: int(value)}, fields.prefix, fields.errors)
    return fields.optional_integer(name, low=1, high=LONGEST_SECONDS)


def _flag(fields: Fields, name: str, *, digits: bool) -> bool:
    value = fields.body.get(name)
    if digits and not isinstance(value, bool) and value in (0, 1, "0", "1"):
        return bool(int(value))
    return True if value is None else fields.flag(name, default=True)
