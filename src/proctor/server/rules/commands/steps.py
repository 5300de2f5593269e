"""The grammar of commands that open something and wait for it: activities, timers, waits (commands.md §2)."""

from __future__ import annotations

from typing import Any

from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.commands.groups import read_group
from proctor.server.rules.commands.options import LONGEST_SECONDS, read_retry_policy, read_timeouts
from proctor.server.rules.fields import Fields
from proctor.server.rules.sessions.options import read_command

_POLICIES = ("try_cancel", "wait_cancellation_completed", "abandon")
_ATTEMPTS_MOST = 10_000


def _schedule_activity(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    queue = reader.optional_text("queue")
    timeouts = read_timeouts(reader)
    policy = reader.optional_text("cancellation_policy")
    if policy is not None and grammar.minor < 20:
        reader.wrong("cancellation_policy", "needs worker protocol 1.20")
    elif policy not in (None, *_POLICIES):
        reader.wrong("cancellation_policy", f"must be one of {', '.join(_POLICIES)}")
    elif policy == "abandon" and timeouts.schedule_to_close is None:
        reader.wrong("cancellation_policy", "abandon needs a schedule_to_close_timeout")
    return {
        "activity_type": reader.text("activity_type").strip(),
        "arguments": reader.payload("arguments", limit=grammar.limit),
        "queue": None if queue is None else queue.strip(),
        "timeouts": timeouts,
        "retry_policy": read_retry_policy(reader, most_attempts=_ATTEMPTS_MOST, bounded_backoff=False),
        "cancellation_policy": policy,
        "worker_session": read_command(reader),
        "group": read_group(reader),
    }


def _start_timer(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    return {
        "delay_seconds": reader.integer("delay_seconds", low=0, high=LONGEST_SECONDS),
        "group": read_group(reader),
    }


def _open_condition_wait(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    def trimmed(name: str) -> str | None:
        text = reader.optional_text(name)
        return None if text is None else text.strip()

    return {
        "condition_key": trimmed("condition_key"),
        "condition_definition_fingerprint": trimmed("condition_definition_fingerprint"),
        "condition_wait_occurrence_id": trimmed("condition_wait_occurrence_id"),
        "timeout_seconds": reader.optional_integer("timeout_seconds", low=0, high=LONGEST_SECONDS),
        "group": read_group(reader),
    }


def _open_signal_wait(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    return {
        "signal_name": reader.text("signal_name").strip(),
        "timeout_seconds": reader.optional_integer("timeout_seconds", low=0, high=LONGEST_SECONDS),
        "group": read_group(reader),
    }


READERS = {
    "schedule_activity": _schedule_activity,
    "start_timer": _start_timer,
    "open_condition_wait": _open_condition_wait,
    "open_signal_wait": _open_signal_wait,
}
