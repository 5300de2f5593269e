"""A handler's result on its way to the wire: checked as a whole before it becomes part of a history. Pure."""

from __future__ import annotations

import base64

from proctor.core.attempt import ChildFacts, Raised, Returned
from proctor.core.codec import decode_bytes
from proctor.errors import PayloadError


def returned(result: bytes, facts: ChildFacts, *, limit: int) -> Returned | Raised:
    """Give the end of a handler whose result is `result` in codec bytes, or the failure that it is not usable.

    `limit` is the most bytes of its wire blob. The bytes may be hostile.
    """
    blob = base64.b64encode(result).decode("ascii")
    if len(blob) > limit:
        return Raised(
            "ResultTooLarge",
            f"the result is {len(blob)} bytes as a payload, the server takes {limit}; "
            "return a reference to stored data instead",
            non_retryable=True,
            facts=facts,
        )
    try:
        decode_bytes(result)  # checked as a whole: a broken frame in history would fail every later replay
    except PayloadError as exc:
        return Raised("InvalidResult", f"the child sent a broken result: {exc}", non_retryable=False, facts=facts)
    return Returned(blob, facts)
