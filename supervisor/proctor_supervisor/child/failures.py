"""Turning any exception into bounded plain facts, without trusting it: its ``__str__`` may raise, or never end."""

from __future__ import annotations

import json
import traceback
from typing import Any

from proctor_supervisor.attempt import AttemptCancelled

MESSAGE_LIMIT = 8 * 1024
TRACEBACK_LIMIT = 32 * 1024
CAUSES_LIMIT = 8
_FRAMES_LIMIT = 60


def describe(exc: BaseException, *, kind: str) -> bytes:
    """Give the JSON facts of `exc` for the owner. `kind` is a `FailureKind`."""
    facts: dict[str, Any] = {
        "kind": kind,
        "type_name": type(exc).__name__[:255],
        "module": str(type(exc).__module__)[:255],
        "message": _message(exc),
        "traceback": _traceback(exc),
        "cancelled": isinstance(exc, AttemptCancelled),
        "non_retryable": getattr(exc, "non_retryable", False) is True,
        "causes": _causes(exc),
    }
    return json.dumps(facts).encode("utf-8", "replace")


def _message(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception as broken:  # noqa: BLE001 - whatever a foreign __str__ raises, the failure itself must arrive
        text = f"<the message cannot be shown: its __str__ raised {type(broken).__name__}>"
    return _cut(text, MESSAGE_LIMIT)


def _traceback(exc: BaseException) -> str:
    # The outermost frames are this package's own and tell the reader nothing.
    own = exc.__traceback__
    while own is not None and own.tb_frame.f_globals.get("__package__") == __package__:
        own = own.tb_next
    try:
        lines = traceback.format_exception(type(exc), exc, own, limit=-_FRAMES_LIMIT)
    except Exception as broken:  # noqa: BLE001 - formatting calls foreign __str__ and __repr__, too
        stack = "".join(traceback.format_tb(own, limit=-_FRAMES_LIMIT))
        return _cut(f"{stack}<the exception cannot be shown: {type(broken).__name__}>", TRACEBACK_LIMIT)
    return _cut("".join(lines), TRACEBACK_LIMIT)


def _causes(exc: BaseException) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    seen = {id(exc)}
    while len(found) < CAUSES_LIMIT:
        following = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        exc = following
        found.append({"type_name": type(exc).__name__, "module": type(exc).__module__, "message": _message(exc)})
    return found


def _cut(text: str, limit: int) -> str:
    """Keep the end of a long text: an exception's last lines say the most."""
    if len(text) <= limit:
        return text
    return f"[truncated {len(text) - limit} characters] …{text[-limit:]}"
