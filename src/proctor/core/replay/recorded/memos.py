"""Memo upserts as history records them, reduced to what they are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.core import codec
from proctor.core.replay.authoring.memo import canonical_memo
from proctor.errors import NonDeterminismError


def read_entries(payload: Mapping[str, Any], *, sequence: int) -> str:
    """Give the canonical blob of a recorded upsert; NonDeterminismError when it cannot be compared with anything."""
    identity = _recorded(payload.get("entries"), sequence, "entries", may_be_empty=False)
    _recorded(payload.get("merged"), sequence, "merged", may_be_empty=True)
    return identity


def _recorded(envelope: object, sequence: int, name: str, *, may_be_empty: bool) -> str:
    problem = "it is not exactly {codec, blob}"
    if isinstance(envelope, Mapping) and set(envelope) == {"codec", "blob"}:
        try:
            entries = codec.decode_value(envelope, None)
            return codec.encode(canonical_memo(entries, may_be_empty=may_be_empty))
        except (TypeError, ValueError) as exc:
            problem = str(exc)
    raise NonDeterminismError(
        f"the memo upsert at sequence {sequence} is recorded with unusable {name}: {problem}",
        sequence=sequence,
        expected=f"a memo upsert with its {name}",
        found=f"memo upsert (MemoUpserted) with unusable {name}",
    )
