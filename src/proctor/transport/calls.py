"""One call and its answer, as the rest of the worker sees them; no HTTP library in sight.

`Transport` is the boundary: the real one is `proctor.transport.lanes`, a scripted server stands in for it
in tests. Paths are those of the protocol files without ``/api``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from urllib.parse import quote

from proctor.errors import ServerRefused

Plane = Literal["worker", "control", "discovery"]

_ERROR_TEXT_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `poll` sends it over the lane of long polls; `single` allows no second try.

    `content` is sent as it is instead of `body`. With `most_bytes` a success is no JSON but bytes, of which no more are
    kept.
    """

    plane: Plane
    method: Literal["GET", "POST", "DELETE"]
    path: str
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    query: Mapping[str, str] = field(default_factory=dict)
    poll: bool = False
    single: bool = False
    content: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer. `started` is when the first try began, `received` when this answer was read
    (trio's clock).
    """

    status: int
    body: Any = field(repr=False)
    started: float = 0.0
    received: float = 0.0
    server_time: datetime | None = None
    """An instant that the server's clock did not show before it answered: its Date header, rounded up; None without."""
    refers: bool = True
    """Whether the body may hold references to external payloads."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of an answer that is bytes, with lower-case names."""

    @property
    def reason(self) -> str | None:
        """Give the server's reason code, if it gave one."""
        reason = self.body.get("reason") if isinstance(self.body, Mapping) else None
        return reason if isinstance(reason, str) else None


class Transport(Protocol):
    """Something that carries calls to one server and brings answers back."""

    async def send(self, call: Call, *, within: float) -> Answer:
        """Send one call; retries, waiting and transport take at most `within` seconds together.

        Gives the answer whatever its status is. Raises ServerUnreachable when no whole answer came in time:
        then nothing is known about what the server did.
        """
        ...


def segment(text: str) -> str:
    """Percent-encode one id for a path; ``. _ : -`` stay as they are (prepared-local.md §2)."""
    return quote(text, safe=":")


def accepted(call: Call, answer: Answer) -> Answer:
    """Give a successful answer back; raise ServerRefused for any other."""
    if 200 <= answer.status < 300:
        return answer
    raise refusal(call, answer)


def refusal(call: Call, answer: Answer) -> ServerRefused:
    """Describe an error answer; the text of the server is bounded and stands beside the code to branch on."""
    body = answer.body if isinstance(answer.body, Mapping) else {}
    text = next((body[key] for key in ("error", "message") if isinstance(body.get(key), str)), "")
    said = f": {_printable(text)}" if text else ""
    hint = {
        401: "; check the token (DURABLE_WORKFLOW_AUTH_TOKEN)",
        403: "; the token has no role for this call, or the namespace is not allowed",
    }.get(answer.status, "")
    return ServerRefused(
        f"the server refused {call.method} {call.path} with {answer.status} "
        f"({answer.reason or 'no reason code'}){said}{hint}",
        status=answer.status,
        reason=answer.reason,
        body={key: value for key, value in body.items() if key != "registration_token"},
    )


def _printable(text: str) -> str:
    return re.sub(r"[^\x20-\x7e\xa0-\uffff]", "?", text[:_ERROR_TEXT_CHARACTERS])
