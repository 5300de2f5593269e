"""The grammar of commands that open something and wait for it: timers and condition waits (commands.md §2)."""

from __future__ import annotations

from typing import Any

from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.commands.options import LONGEST_SECONDS
from proctor.server.rules.fields import Fields


def _start_timer(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    return {"delay_seconds": reader.integer("delay_seconds", low=0, high=LONGEST_SECONDS), "group": {}}


def _open_condition_wait(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    def trimmed(name: str) -> str | None:
        text = reader.optional_text(name)
        return None if text is None else text.strip()

    return {
        "condition_key": trimmed("condition_key"),
        "condition_definition_fingerprint": trimmed("condition_definition_fingerprint"),
        "condition_wait_occurrence_id": trimmed("condition_wait_occurrence_id"),
        "timeout_seconds": reader.optional_integer("timeout_seconds", low=0, high=LONGEST_SECONDS),
        "group": {},
    }


READERS = {
    "start_timer": _start_timer,
    "open_condition_wait": _open_condition_wait,
}
