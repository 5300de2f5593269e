"""Turning any exception into bounded plain facts, without trusting it: its ``__str__`` may raise, or never end."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from proctor_supervisor.attempt import AttemptCancelled

MESSAGE_LIMIT = 8 * 1024
TRACEBACK_LIMIT = 32 * 1024
CAUSES_LIMIT = 8
_NAME_LIMIT = 255
_FRAMES_LIMIT = 60

_NOTHING_TO_TELL = {
    "type_name": "Exception",
    "module": "builtins",
    "message": "<the exception cannot be described>",
    "traceback": "",
    "cancelled": False,
    "non_retryable": False,
    "causes": [],
}
_BARE = {
    kind: json.dumps({"kind": kind, **_NOTHING_TO_TELL}).encode() for kind in ("raised", "unloadable", "result_refused")
}


def describe(exc: BaseException, *, kind: str) -> bytes:
    """Give the JSON facts of `exc` for the owner. `kind` is a `FailureKind`. Never raises."""
    try:
        facts: dict[str, Any] = {
            "kind": kind,
            "type_name": _name(type(exc).__name__),
            "module": _guarded(partial(_module, exc), ""),
            "message": _message(exc),
            "traceback": _traceback(exc),
            "cancelled": issubclass(type(exc), AttemptCancelled),
            "non_retryable": _guarded(partial(getattr, exc, "non_retryable", False), False) is True,
            "causes": _guarded(partial(_causes, exc), []),
        }
        return json.dumps(facts).encode()
    except BaseException:  # noqa: BLE001 - a handler may leave an interpreter behind in which nothing works
        return _BARE[kind]


def _guarded(ask: Callable[[], Any], otherwise: Any) -> Any:
    """Ask an exception something that may run its own code."""
    try:
        return ask()
    except BaseException:  # noqa: BLE001 - whatever it raises, the failure itself must arrive
        return otherwise


def _message(exc: BaseException) -> str:
    try:
        text = _plain(str(exc))
    except BaseException as broken:  # noqa: BLE001 - SystemExit, too
        text = f"<the message cannot be shown: its __str__ raised {type(broken).__name__}>"
    return _cut(text, MESSAGE_LIMIT)


def _traceback(exc: BaseException) -> str:
    """Give the text Python would print, of this exception and as many of those behind it as are told of at all."""
    # The outermost frames are this package's own and tell the reader nothing.
    own = exc.__traceback__
    while own is not None and own.tb_frame.f_globals.get("__package__") == __package__:
        own = own.tb_next
    shown = traceback.format_tb(own, limit=-_FRAMES_LIMIT)
    try:
        lines = ["Traceback (most recent call last):\n", *shown, *traceback.format_exception_only(exc)]
        if isinstance(exc, BaseExceptionGroup):  # its members are told of by their number and depth, not endlessly
            lines = traceback.format_exception(type(exc), exc, own, limit=-_FRAMES_LIMIT, chain=False)
        for cause, joint in _chain(exc):
            above = traceback.format_exception(
                type(cause), cause, cause.__traceback__, limit=-_FRAMES_LIMIT, chain=False
            )
            lines = [*above, f"\n{joint}\n\n", *lines]
        text = _plain("".join(lines))
    except BaseException as broken:  # noqa: BLE001 - formatting calls foreign __str__ and __repr__, too
        text = _plain("".join(shown)) + f"<the exception cannot be shown: {type(broken).__name__}>"
    return _cut(text, TRACEBACK_LIMIT)


_DIRECT = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def _chain(exc: BaseException) -> list[tuple[BaseException, str]]:
    """The exceptions behind one, nearest first, with what joins each to the one before; a chain may be endless."""
    found: list[tuple[BaseException, str]] = []
    seen = {id(exc)}
    while len(found) < CAUSES_LIMIT:
        following, joint = exc.__cause__, _DIRECT
        if following is None and not exc.__suppress_context__:
            following, joint = exc.__context__, _CONTEXT
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        exc = following
        found.append((exc, joint))
    return found


def _causes(exc: BaseException) -> list[dict[str, str]]:
    return [
        {
            "type_name": _name(type(cause).__name__),
            "module": _guarded(partial(_module, cause), ""),
            "message": _message(cause),
        }
        for cause, _ in _chain(exc)
    ]


def _module(exc: BaseException) -> str:
    return _name(type(exc).__module__)


def _name(name: object) -> str:
    return _plain(str(name))[:_NAME_LIMIT]


def _plain(text: str) -> str:
    """Give a real string that has a UTF-8 form; file names, for one, can hold halves of characters."""
    return "".join(text).encode("utf-8", "backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    """Keep the end of a long text: an exception's last lines say the most."""
    if len(text) <= limit:
        return text
    return f"[truncated {len(text) - limit} characters] …{text[-limit:]}"
