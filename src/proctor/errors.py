"""Every exception Proctor raises on purpose.

The tree::

    ProctorError
    ├── UsageError                 what was asked for cannot be done as asked           (exit 2)
    │   └── HandlersRefused        handlers that cannot run in a child                  (exit 2)
    ├── NegotiationRefused         discovery lacks what the chosen profile needs        (exit 3)
    ├── NonDeterminismError        the code does not match the recorded history         (exit 4)
    ├── HistoryError               a history that no worker may replay                  (exit 2)
    ├── EntryArgumentsMismatch     recorded arguments that `run` does not take: the task fails, the run waits
    ├── WorkflowCodeBroken         workflow code did what no run may depend on: the task fails, the run waits
    ├── PayloadError               bytes or values outside the payload codec  (also a ValueError)
    │   ├── UnsupportedValueError  a Python type with no wire form            (also a TypeError)
    │   ├── ExternalPayloadUnsupported  a payload kept outside that cannot be read as such, or that nobody fetched
    │   └── ExternalPayloadRejected  a payload kept outside that is gone, too large, or not what its reference says
    ├── TransportError             no usable answer came back
    │   └── ServerUnreachable      nothing listens, or the connection broke before an answer
    ├── ServerRefused              the server answered with an error status and a reason code
    ├── ProtocolBreach             the server's answer contradicts the protocol: nothing is built on it
    ├── AuthorityLost              the claim is no longer ours: stop, publish nothing
    ├── StopUnconfirmed            a child could not be proven gone
    ├── StorageError               the database file cannot be used as it is            (exit 2)
    └── WorkflowFailed             a run that was waited for did not complete           (exit 1)

Who may raise what: our own misuse is `UsageError`, the other side's is `ProtocolBreach`; trouble in between is
`TransportError`. Exceptions that workflow code sees live in `proctor.workflow`, those a handler sees in
`proctor.activity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


class ProctorError(Exception):
    """Base of all errors raised on purpose; its text says what happened, where, and what to do."""


class UsageError(ProctorError):
    """What was asked for cannot be done as asked: a wrong argument, a missing file, an unusable module."""


@dataclass(frozen=True, slots=True)
class HandlerRefusal:
    """One reason not to register a handler.

    `activity` is its wire name, `where` its ``module.qualname``, `thing` what is at fault, then why and what to do.
    """

    activity: str
    where: str
    thing: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"handler {self.activity!r} ({self.where}): {self.thing}; {self.why}. Instead: {self.remedy}"


class HandlersRefused(UsageError):
    """Handlers that were loaded in a child and cannot run there; nothing was registered. `refusals` names each."""

    def __init__(self, refusals: tuple[HandlerRefusal, ...]) -> None:
        super().__init__(f"not registered: {' | '.join(map(str, refusals))}")
        self.refusals = refusals


class NegotiationRefused(ProctorError):
    """Discovery does not show what this worker's profile needs, so the worker does not register.

    `missing` names each absent capability as it is spelled in cluster info (transport.md §5).
    """

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class NonDeterminismError(ProctorError):
    """The workflow code asked for something other than what the history holds (replay.md §3).

    The workflow task fails, the run stays open. `sequence` is the durable command sequence (from 1; 0 when it
    concerns the whole run), `expected` what the code did, `found` what the history records there.
    """

    def __init__(self, message: str, *, sequence: int = 0, expected: str = "", found: str = "") -> None:
        super().__init__(message)
        self.sequence = sequence
        self.expected = expected
        self.found = found


class HistoryError(ProctorError):
    """A history that cannot be replayed: malformed, truncated, out of order or of another kind.

    `position` is the place of the offending event in the list, counted from 0; None when it concerns the whole.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class EntryArgumentsMismatch(ProctorError):
    """The recorded start arguments do not fit the signature of `run` (replay.md §3.2).

    A failure of the workflow task, never of the run: with matching code the run goes on. `reason` is the stable code.
    """

    reason = "workflow_entry_arguments_mismatch"


class WorkflowCodeBroken(ProctorError):
    """Workflow code ended in a way that must not decide the run: SystemExit, an unstoppable loop, no constructor.

    A failure of the workflow task, never of the run: with repaired code the run goes on.
    """


class PayloadError(ProctorError, ValueError):
    """A payload that cannot be encoded or decoded; `category` is the stable code of payloads.md §7 and §8."""

    def __init__(self, category: str, detail: str) -> None:
        super().__init__(f"{category}: {detail}" if category else detail)
        self.category = category

    def at(self, place: str) -> Self:
        """Give the same error with the place where the payload stands; the category stays in front."""
        placed = type(self).__new__(type(self))
        placed.__dict__.update(self.__dict__)
        detail = str(self).removeprefix(f"{self.category}: ")
        placed.args = (f"{self.category}: {place}: {detail}" if self.category else f"{place}: {detail}",)
        return placed


class UnsupportedValueError(PayloadError, TypeError):
    """A Python value whose type has no wire form (payloads.md §4)."""


class ExternalPayloadUnsupported(PayloadError):
    """A payload that is a reference to outside storage (payloads.md §5); `reason` is the stable code."""

    reason = "external_payload_unsupported"

    def __init__(self, detail: str) -> None:
        super().__init__("", detail)


class ExternalPayloadRejected(PayloadError):
    """A payload kept outside that will not be had by asking again; `reason` is the stable code of transport.md §3.1."""

    def __init__(self, detail: str, *, reason: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason


class TransportError(ProctorError):
    """No usable answer came back, so nothing is known about what the server did."""


class ServerUnreachable(TransportError):
    """Nothing answers at the server's address, or the connection broke before a whole answer arrived."""


class ServerRefused(ProctorError):
    """The server answered with an error status. Branch on `status` and `reason`, never on the text.

    `body` is the decoded answer; it may hold identities, never tokens.
    """

    def __init__(self, message: str, *, status: int, reason: str | None, body: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.body = body


class ProtocolBreach(ProctorError):
    """The server's answer contradicts the protocol. `rule` names the rule, such as ``prepared-local §3.10``."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class AuthorityLost(ProctorError):
    """The claim is not ours any more (or may not be); the child is stopped and nothing is published.

    `reason` is the server's reason code, or ours: ``authority_spent``, ``worker_shutdown``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class StopUnconfirmed(ProctorError):
    """A child could not be proven gone within its stop budget; its capacity stays taken."""


class StorageError(ProctorError):
    """The database file cannot be used as it is; it was left untouched."""


class UpdateFailed(ProctorError):
    """An accepted update whose handler failed, or whose run ended before it was applied."""

    def __init__(self, message: str, *, workflow_id: str, update_id: str | None) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.update_id = update_id


class WorkflowFailed(ProctorError):
    """A run that was waited for ended without a result. `status` is its final status."""

    def __init__(self, message: str, *, status: str, workflow_id: str) -> None:
        super().__init__(message)
        self.status = status
        self.workflow_id = workflow_id
