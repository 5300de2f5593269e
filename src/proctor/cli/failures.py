"""From any exception to one paragraph and an exit code.

The codes: 0 ok, 1 the work failed, 2 usage or unreadable input, 3 refused by negotiation, 4 nondeterminism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from proctor import errors

FAILED = 1
USAGE = 2
REFUSED = 3
NONDETERMINISM = 4
INTERRUPTED = 130

# The first kind that fits decides; of several exceptions at once, the one that comes first here is told.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.StopUnconfirmed, FAILED),
    (errors.NegotiationRefused, REFUSED),
    (errors.NonDeterminismError, NONDETERMINISM),
    (errors.UsageError, USAGE),
    (errors.StorageError, USAGE),
    (errors.HistoryError, USAGE),
    (errors.PayloadError, USAGE),
    (errors.ProctorError, FAILED),
    (KeyboardInterrupt, INTERRUPTED),
)


@dataclass(frozen=True, slots=True)
class Told:
    """What to print, and the exit code."""

    text: str
    code: int


def explain(exc: BaseException) -> Told:
    """Give the paragraph and the code for `exc`, or for the gravest exception inside a group."""
    leaves = list(_leaves(exc))
    for kind, code in _CODES:
        for leaf in leaves:
            if isinstance(leaf, kind):
                text = "interrupted" if isinstance(leaf, KeyboardInterrupt) else _one_paragraph(str(leaf))
                return Told(text, code)
    shown = leaves[0] if leaves else exc
    return Told(
        f"internal error: {type(shown).__name__}: {_one_paragraph(str(shown))} This is a defect of Proctor; run the "
        f"command again with --debug for the traceback, and please report it.",
        FAILED,
    )


def is_reader_gone(exc: BaseException) -> bool:
    """Whether whoever read our output has left, alone or in a group with the cancellations that followed."""
    return any(type(leaf) is BrokenPipeError for leaf in _leaves(exc))


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc


def _one_paragraph(text: str) -> str:
    return " ".join(text.split())
