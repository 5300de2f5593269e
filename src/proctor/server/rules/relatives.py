"""What the end of a run means for the runs related to it: its next try, its parent, its open children."""

from __future__ import annotations

from functools import partial

from proctor.server.rules import chains
from proctor.server.rules.book import FollowUp, RunBook
from proctor.server.rules.children import hear_of_end, when_parent_closes
from proctor.server.rules.requesting import request_at_close


def take_follow_ups(book: RunBook) -> list[FollowUp]:
    """Take what is still to be done in other runs, and conclude what an end in this book means for them."""
    closing = book.closing
    if closing is not None:
        book.closing = None
        run = book.run
        goes_on = run.closed_reason == "continued" or chains.retry(book, closing.payload)
        if run.parent is not None and not goes_on:
            act = partial(
                hear_of_end, sequence=run.parent.sequence, child=run, payload=closing.payload, ended=closing.event
            )
            book.follow_ups.append(FollowUp(run.parent.run_id, act))
        asks = any(call.parent_close_policy == "request_cancellation" for call in closing.children)
        request = request_at_close(book, closing) if asks else None
        for call in closing.children:
            following = when_parent_closes(call, run, request)
            if following is not None:
                book.follow_ups.append(following)
    taken, book.follow_ups = book.follow_ups, []
    return taken
