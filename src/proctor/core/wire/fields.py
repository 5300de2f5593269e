"""Strict reading of one answer's fields: each wrong one is a `ProtocolBreach` that names the rule it breaks.

Integers are real integers (never booleans), "present and null" means the key exists, instants carry a
timezone. What a field *means* is left to the module of its endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from proctor.core.instants import parse_instant
from proctor.errors import ProtocolBreach

_SHOWN_CHARACTERS = 80
_MISSING = object()


def shown(value: object) -> str:
    """Give a bounded text of a value from the wire, for a message to a person."""
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


class Fields:
    """The fields of one answer. `what` names the answer in messages; `section` is the protocol section
    of its rules.
    """

    def __init__(self, body: object, *, what: str, section: str) -> None:
        self.what = what
        self.section = section
        if not isinstance(body, Mapping):
            self.breach("shape", f"is {shown(body)}, not an object")
        self.body: Mapping[str, Any] = body

    def breach(self, rule: str, problem: str) -> NoReturn:
        """Raise the breach of `rule` of this answer's section."""
        name = f"{self.section}.{rule}" if rule != "shape" else self.section
        raise ProtocolBreach(
            f"the server's {self.what} answer breaks {name}: it {problem}; nothing is built on it", rule=name
        )

    def present(self, key: str, rule: str) -> Any:
        """Give the value of a key that must exist."""
        value = self.body.get(key, _MISSING)
        if value is _MISSING:
            self.breach(rule, f"has no {key!r}")
        return value

    def exactly(self, key: str, expected: object, rule: str) -> None:
        """Require one exact value of one exact type: 1 is not True, and "1" is not 1."""
        value = self.present(key, rule)
        if type(value) is not type(expected) or value != expected:
            self.breach(rule, f"has {key} {shown(value)} instead of {shown(expected)}")

    def boolean(self, key: str, rule: str) -> bool:
        """Give a real boolean."""
        value = self.present(key, rule)
        if not isinstance(value, bool):
            self.breach(rule, f"has {key} {shown(value)}, not a boolean")
        return value

    def integer(self, key: str, rule: str, *, least: int) -> int:
        """Give a real integer of at least `least`."""
        value = self.present(key, rule)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.breach(rule, f"has {key} {shown(value)}, not an integer of at least {least}")
        return value

    def text(self, key: str, rule: str) -> str:
        """Give a string that is not blank."""
        value = self.present(key, rule)
        if not isinstance(value, str) or not value.strip():
            self.breach(rule, f"has {key} {shown(value)}, not a non-blank string")
        return value

    def text_or_none(self, key: str, rule: str) -> str | None:
        """Give a string, or None when the key is missing or null."""
        value = self.body.get(key)
        if value is not None and not isinstance(value, str):
            self.breach(rule, f"has {key} {shown(value)}, not a string")
        return value

    def instant(self, key: str, rule: str) -> datetime:
        """Give an instant with its timezone."""
        return self.to_instant(key, self.present(key, rule), rule)

    def instant_or_none(self, key: str, rule: str) -> datetime | None:
        """Give an instant or None; the key itself must be present."""
        value = self.present(key, rule)
        return None if value is None else self.to_instant(key, value, rule)

    def to_instant(self, key: str, value: object, rule: str) -> datetime:
        """Read one wire timestamp."""
        try:
            return parse_instant(value)
        except ValueError:
            self.breach(rule, f"has {key} {shown(value)}, not a timestamp with timezone")

    def texts(self, key: str, rule: str) -> tuple[str, ...]:
        """Give a list of non-blank strings."""
        value = self.present(key, rule)
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            self.breach(rule, f"has {key} {shown(value)}, not a list of non-blank strings")
        return tuple(value)
