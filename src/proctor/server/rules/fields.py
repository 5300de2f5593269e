"""Reading a request body strictly: real integers, bounded strings, every mistake named by its dotted field.

`Fields` collects what is wrong and raises one 422 refusal for all of it at `check()`; until then it gives harmless
placeholders, so a reader may be written straight down without branches.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any

from proctor.core.external import KEY, External, Payload, read_envelope
from proctor.errors import ExternalPayloadUnsupported
from proctor.server.rules.refusal import Refusal, Unstored, invalid

# The largest integer that every JSON reader keeps exact; a column holds more.
LARGEST = 2**53 - 1


class Mistakes(dict[str, list[str]]):
    """What is wrong with a request by dotted field name; `unstored` is the refusal of a payload that is not here."""

    unstored: Refusal | None = None


class Fields:
    """A reader over one JSON object of a request."""

    def __init__(self, body: Mapping[str, Any], prefix: str = "", errors: Mistakes | None = None):
        self.body = body
        self.prefix = prefix
        self.errors = Mistakes() if errors is None else errors

    def wrong(self, name: str, text: str) -> None:
        """Note what is wrong with a field."""
        self.errors.setdefault(self.prefix + name, []).append(text)

    def check(self) -> None:
        """Raise the 422 refusal when anything was wrong, then that of a payload which is not stored here."""
        if self.errors:
            raise invalid(self.errors)
        if self.errors.unstored is not None:
            raise self.errors.unstored

    def optional_text(self, name: str, *, limit: int = 255, blank: bool = False) -> str | None:
        """Read a string of at most `limit` characters; absent and null give None."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.wrong(name, "must be a string")
        elif not blank and not value.strip():
            self.wrong(name, "must not be blank")
        elif len(value) > limit:
            self.wrong(name, f"must have at most {limit} characters")
        else:
            return value
        return None

    def text(self, name: str, *, limit: int = 255) -> str:
        """Read a required, non-blank string."""
        if self.body.get(name) is None:
            self.wrong(name, "is required")
            return ""
        return self.optional_text(name, limit=limit) or ""

    def choice(self, name: str, choices: Collection[str], *, default: str) -> str:
        """Read one of some words."""
        value = self.body.get(name, default)
        if value not in choices:
            self.wrong(name, f"must be one of {', '.join(sorted(choices))}")
            return default
        return str(value)

    def optional_integer(self, name: str, *, low: int, high: int = LARGEST) -> int | None:
        """Read a real integer within bounds (a bool or a float is refused); absent and null give None."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong(name, "must be an integer")
        elif not low <= value <= high:
            self.wrong(name, f"must be within {low}..{high}")
        else:
            return value
        return None

    def integer(self, name: str, *, low: int, high: int = LARGEST) -> int:
        """Read a required integer."""
        if self.body.get(name) is None:
            self.wrong(name, "is required")
            return low
        value = self.optional_integer(name, low=low, high=high)
        return low if value is None else value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Read a real boolean."""
        value = self.body.get(name, default)
        if not isinstance(value, bool):
            self.wrong(name, "must be true or false")
            return default
        return value

    def optional_object(self, name: str) -> dict[str, Any] | None:
        """Read a JSON object; absent and null give None."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, "must be an object")
            return None
        return value

    def object(self, name: str) -> dict[str, Any]:
        """Read a required JSON object."""
        if self.body.get(name) is None:
            self.wrong(name, "is required")
            return {}
        return self.optional_object(name) or {}

    def texts(self, name: str) -> tuple[str, ...]:
        """Read a list of non-blank strings; absent and null give an empty tuple."""
        value = self.body.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            self.wrong(name, "must be a list of non-blank strings")
            return ()
        return tuple(value)

    def objects(self, name: str, *, low: int, high: int) -> list[dict[str, Any]]:
        """Read a required list of `low` to `high` objects."""
        value = self.body.get(name)
        if not isinstance(value, list):
            self.wrong(name, "must be a list")
        elif not low <= len(value) <= high:
            self.wrong(name, f"must have {low} to {high} items, has {len(value)}")
        elif not all(isinstance(item, dict) for item in value):
            self.wrong(name, "must be a list of objects")
        else:
            return value
        return []

    def payload(self, name: str, *, limit: int) -> Payload | None:
        """Read a payload: a bare blob, an envelope of one, or a reference; absent and null give None.

        Only the frame is looked at: the codec name and that the blob is base64 of at most `limit` bytes. The value
        inside is none of the server's business. References were looked up before (`operations.references`).
        """
        value = self.body.get(name)
        if value is None or isinstance(value, External):
            return value
        if isinstance(value, Unstored):
            self.errors.unstored = value.refusal
            return None
        if isinstance(value, dict) and KEY in value:
            try:
                read_envelope(value)
            except ExternalPayloadUnsupported as exc:
                self.wrong(name, str(exc))
            else:
                self.wrong(name, "external payload storage is not available in this namespace")
            return None
        blob = value
        if isinstance(value, dict):
            codec, blob = value.get("codec"), value.get("blob")
            if codec != "avro":
                self.wrong(name, f"payload codec {codec!r} is not supported, only avro is")
                return None
        if not isinstance(blob, str) or not blob:
            self.wrong(name, 'must be {"codec": "avro", "blob": "<base64>"}')
        elif len(blob) > limit:
            self.wrong(name, f"is larger than {limit} bytes")
        elif not _is_base64(blob):
            self.wrong(name, "the blob is not base64")
        else:
            return blob
        return None


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def envelope(payload: Payload | None) -> Mapping[str, str] | External | None:
    """Put a payload into its envelope; None stays None."""
    return {"codec": "avro", "blob": payload} if isinstance(payload, str) else payload
