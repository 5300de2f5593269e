"""The memo of a run: typed values that the workflow changes and people read (payloads.md §9).

History carries it as canonical payloads, which keep types apart; what people read is JSON, where bytes are base64.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from proctor.core import codec
from proctor.core.replay.authoring.memo import canonical_memo
from proctor.errors import PayloadError
from proctor.server.rules.refusal import Refusal
from proctor.server.rules.rows import Run


def read_entries(field: object) -> dict[str, Any]:
    """Read the entries of an upsert, a null value for each key to delete; raises ValueError saying what is wrong."""
    if not isinstance(field, Mapping) or field.get("codec") != codec.CODEC:
        raise ValueError('must be {"codec": "avro", "blob": "<base64>"}')
    try:
        return canonical_memo(codec.decode_value(field, None))
    except (PayloadError, TypeError) as exc:
        raise ValueError(str(exc)) from exc


def current(run: Run) -> dict[str, Any]:
    """Give the memo of a run with its types; one that no upsert has touched is as it was started with."""
    found: dict[str, Any] = codec.decode(run.memo_blob) if run.memo_blob is not None else dict(run.memo or {})
    return found


def merge(memo: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Give the memo after an upsert; raises the 422 refusal when it would be too large or has unusable keys."""
    merged = {key: value for key, value in {**memo, **entries}.items() if value is not None}
    try:
        return canonical_memo(merged, may_be_empty=True)
    except (PayloadError, TypeError, ValueError) as exc:
        raise Refusal(422, "workflow_memo_validation_failed", f"the memo after this upsert is unusable: {exc}") from exc


def readable(value: Any) -> Any:
    """Give a typed value as JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value
