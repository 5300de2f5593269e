"""What an operation answers: an `Answer`, or a `Refusal` raised from anywhere inside the rules.

A refusal is an answer too. What the rules changed before refusing (a deadline that passed, a fence that was set) is a
fact and is kept; so rules check everything they can before they change anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the operation's own body, before the envelope of its plane is added.

    `incarnation` is never sent: it tells a poll that will be parked which registration it is parked for. Nor is
    `passing`: nothing that lasts has come of the request, so what it refers to need not be kept. A `sealed` body
    carries its own checksum and is sent without the envelope.
    """

    body: Mapping[str, Any]
    status: int = 200
    incarnation: str | None = None
    passing: bool = False
    sealed: bool = False


@dataclass(slots=True)
class Refusal(Exception):
    """An operation refused: clients branch on `status` and `reason`, people read `text`."""

    status: int
    reason: str
    text: str
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give the base class something to show in a traceback."""
        Exception.__init__(self, f"{self.status} {self.reason}: {self.text}")

    def with_fields(self, **fields: Any) -> Refusal:
        """Give the same refusal with more body fields; fields it already has win."""
        return Refusal(self.status, self.reason, self.text, {**fields, **self.extra})


class Unstored(dict[str, Any]):
    """A reference in a request to a payload that this namespace does not have as it is described.

    Where a payload is read `refusal` is raised; anywhere else it is the data that it looks like.
    """

    def __init__(self, body: Mapping[str, Any], refusal: Refusal) -> None:
        super().__init__(body)
        self.refusal = refusal


def conflict(reason: str, text: str, **extra: Any) -> Refusal:
    """Make a 409 refusal."""
    return Refusal(409, reason, text, extra)


def not_found(reason: str, text: str, **extra: Any) -> Refusal:
    """Make a 404 refusal."""
    return Refusal(404, reason, text, extra)


def invalid(errors: Mapping[str, list[str]]) -> Refusal:
    """Make a 422 refusal; `errors` maps dotted field names to what is wrong with them."""
    names = ", ".join(sorted(errors))
    text = f"the request is not valid: see `errors` for {names}"
    return Refusal(422, "validation_failed", text, {"errors": dict(errors)})
