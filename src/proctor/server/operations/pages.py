"""Pages of history: their sizes and their cursors, the base64 text of the last history sequence seen."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from proctor.server.rules.book import RunBook
from proctor.server.rules.refusal import Refusal
from proctor.server.rules.rows import Event

PAGE_DEFAULT = 500
PAGE_MAX = 1_000


def page_token(sequence: int) -> str:
    """Give the cursor behind a history sequence."""
    return base64.b64encode(str(sequence).encode()).decode()


def read_page_token(token: object) -> int:
    """Give the history sequence of a cursor; raises the 400 refusal for anything else."""
    try:
        text = base64.b64decode(str(token), validate=True).decode("ascii")
        if isinstance(token, str) and text.isdigit() and len(text) <= 15:
            return int(text)
    except (binascii.Error, ValueError):
        pass
    raise foreign_token()


def foreign_token() -> Refusal:
    """Make the refusal of a page token that this server has not made."""
    return Refusal(400, "invalid_page_token", "the page token is not one this server gave out")


def next_page_token(book: RunBook, events: Sequence[Event]) -> str | None:
    """Give the cursor behind a page of a run's history; None behind the last one."""
    last = events[-1].sequence if events else book.run.last_event
    return page_token(last) if last < book.run.last_event else None
