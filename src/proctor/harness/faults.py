"""The faults that can be done to an exchange, and the rules that choose the exchange. What acts on them is `proxy`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import trio

from proctor.errors import UsageError
from proctor.harness.exchanges import OPERATIONS, Exchange, Request, path_pattern
from proctor.harness.refusals import Reason, check_refusal


@dataclass(frozen=True, slots=True)
class DropRequest:
    """The request never reaches the server; the client's connection is closed."""

    def __str__(self) -> str:
        return "drop request"


@dataclass(frozen=True, slots=True)
class DropResponse:
    """The server answers, so whatever the request asked for is committed; the client's connection is closed."""

    def __str__(self) -> str:
        return "drop response"


@dataclass(frozen=True, slots=True)
class Delay:
    """The request (``where="request"``) or the answer waits `seconds`. A request arrives even if its client left."""

    seconds: float
    where: Literal["request", "answer"] = "request"

    def __post_init__(self) -> None:
        """Check the pause."""
        if not self.seconds >= 0:
            raise UsageError(f"a delay is 0 s or more, not {self.seconds}")

    def __str__(self) -> str:
        return f"delay {self.where} {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The request reaches the server `times` times, one after the other; the client gets the last answer."""

    times: int = 2

    def __post_init__(self) -> None:
        """Check the count."""
        if self.times < 2:
            raise UsageError(f"a request is duplicated at least twice, not {self.times} times")

    def __str__(self) -> str:
        return f"duplicate {self.times}x"


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks in mid-body, after `part` (0 to 1) of the request or of the answer."""

    where: Literal["request", "answer"] = "answer"
    part: float = 0.5

    def __post_init__(self) -> None:
        """Check the part."""
        if not 0 <= self.part < 1:
            raise UsageError(f"a body is cut after a part from 0 to below 1, not {self.part}")

    def __str__(self) -> str:
        return f"cut {self.where} at {self.part:g}"


@dataclass(frozen=True, slots=True)
class Refuse:
    """The proxy answers 503 (or 429) in the server's place, with the exact body of transport.md §4."""

    reason: Reason = "backend_unavailable"
    retry_after_seconds: int = 1

    def __post_init__(self) -> None:
        """Check reason and delay."""
        check_refusal(self.reason, self.retry_after_seconds)

    def __str__(self) -> str:
        return f"refuse {self.reason}"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`change` gets the decoded JSON of the server's answer and gives what the client is told instead.

    An answer that is bytes (``application/octet-stream``) goes through `change` as bytes.
    """

    change: Callable[[Any], Any]

    def __str__(self) -> str:
        return "rewrite answer"


@dataclass(frozen=True, slots=True)
class Hold:
    """The request or the answer waits until the rule is released (`Rule.release`)."""

    where: Literal["request", "answer"] = "answer"

    def __str__(self) -> str:
        return f"hold {self.where}"


Fault = DropRequest | DropResponse | Delay | Duplicate | Cut | Refuse | Rewrite | Hold


@dataclass(frozen=True, slots=True)
class Match:
    """Which exchanges a rule is about; what is None matches any. `operation` is a name of `OPERATIONS`."""

    operation: str | None = None
    method: str | None = None
    path: str | None = None
    worker: str | None = None

    def __post_init__(self) -> None:
        """Check that the operation exists."""
        if self.operation is not None and self.operation not in OPERATIONS:
            raise UsageError(f"there is no operation {self.operation!r}; there are: {', '.join(OPERATIONS)}")

    def compile(self) -> Callable[[Request], bool]:
        """Give the test of one request."""
        pattern: re.Pattern[str] | None = None if self.path is None else path_pattern(self.path)

        def test(request: Request) -> bool:
            return (
                self.operation in (None, request.operation)
                and self.method in (None, request.method)
                and self.worker in (None, request.worker)
                and (pattern is None or pattern.fullmatch(request.path) is not None)
            )

        return test


class Rule:
    """A fault for the `nth` exchange that matches, and for the `times - 1` that follow; `times` None has no end.

    Made by `FaultProxy.add`. `seen` counts the exchanges that matched, `exchanges` are those it acted on.
    """

    def __init__(self, fault: Fault, match: Match, *, nth: int = 1, times: int | None = 1) -> None:
        if nth < 1 or (times is not None and times < 1):
            raise UsageError(f"nth and times count from 1, not nth={nth}, times={times}")
        self.fault = fault
        self.match = match
        self.nth = nth
        self.times = times
        self.seen = 0
        self.exchanges: list[Exchange] = []
        self._matches = match.compile()
        self._released = trio.Event()
        self._acted = trio.Event()
        self._committed = trio.Event()

    def count(self, request: Request) -> bool:
        """Count an exchange that matches; give whether it is one that the rule acts on."""
        if not self._matches(request):
            return False
        self.seen += 1
        return self.nth <= self.seen and (self.times is None or self.seen < self.nth + self.times)

    def acts_on(self, exchange: Exchange) -> None:
        """Note the exchange that the rule acts on now."""
        self.exchanges.append(exchange)
        self._acted.set()

    def commits(self) -> None:
        """Note that the server has answered an exchange of this rule."""
        self._committed.set()

    @property
    def used_up(self) -> bool:
        """Whether no further exchange will be acted on."""
        return self.times is not None and len(self.exchanges) >= self.times

    async def acted(self) -> Exchange:
        """Wait until the rule acts for the first time; give that exchange."""
        await self._acted.wait()
        return self.exchanges[0]

    async def committed(self) -> Exchange:
        """Wait until the server has answered an exchange that the rule acted on; give the first of them."""
        await self._committed.wait()
        return self.exchanges[0]

    def release(self) -> None:
        """Let go what a `Hold` holds, now and from now on."""
        self._released.set()

    async def released(self) -> None:
        """Wait for `release`."""
        await self._released.wait()
