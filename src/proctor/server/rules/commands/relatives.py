"""The grammar of commands that begin another run: a child, or the successor of this run (commands.md §2).

Whether the claim may use a policy of protocol 1.20 is checked against the claim, not against the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.commands.groups import read_group
from proctor.server.rules.commands.options import LONGEST_SECONDS, read_retry_policy
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import conflict
from proctor.server.rules.rows import Task

_CLOSE_POLICIES = ("abandon", "request_cancel", "terminate", "request_cancellation")
_CANCELLATION_POLICIES = ("try_cancel", "wait_cancellation_completed", "abandon")
_ATTEMPTS_MOST = 10_000


def start_child_workflow(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    """Read the start of a child; without a retry policy it is tried once."""
    queue = reader.optional_text("queue")
    execution = reader.optional_integer("execution_timeout_seconds", low=1, high=LONGEST_SECONDS)
    run = reader.optional_integer("run_timeout_seconds", low=1, high=LONGEST_SECONDS)
    if execution is not None and run is not None and run > execution:
        reader.wrong("run_timeout_seconds", "must not exceed execution_timeout_seconds")
    policy = None
    if reader.body.get("retry_policy") is not None:
        policy = read_retry_policy(reader, most_attempts=_ATTEMPTS_MOST, bounded_backoff=False)
    return {
        "workflow_type": reader.text("workflow_type").strip(),
        "arguments": reader.payload("arguments", limit=grammar.limit),
        "queue": None if queue is None else queue.strip(),
        "parent_close_policy": _word(reader, "parent_close_policy", _CLOSE_POLICIES),
        "cancellation_policy": _word(reader, "cancellation_policy", _CANCELLATION_POLICIES),
        "retry_policy": policy,
        "execution_timeout_seconds": execution,
        "run_timeout_seconds": run,
        "group": read_group(reader),
    }


def continue_as_new(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    """Read the end of a run that goes on in another; absent names mean those of this run."""
    names = {name: reader.optional_text(name) for name in ("queue", "workflow_type")}
    return {
        "arguments": reader.payload("arguments", limit=grammar.limit),
        **{name: None if value is None else value.strip() for name, value in names.items()},
    }


def check_policies(task: Task, commands: Sequence[Command]) -> None:
    """Refuse policies of cooperative cancellation that the claim was not leased for (cancellation.md §8)."""
    claim = task.claim
    if claim is not None and "cooperative_cancellation" in claim.capabilities and claim.minor >= 20:
        return
    for command in commands:
        if command.type != "start_child_workflow":
            continue
        facts = command.facts
        cooperative = facts["cancellation_policy"] in ("try_cancel", "wait_cancellation_completed")
        if cooperative or facts["parent_close_policy"] == "request_cancellation":
            raise conflict(
                "child_cancellation_policy_not_supported",
                f"the policies of child {facts['workflow_type']} need a claim with cooperative cancellation",
                task_id=task.task_id,
            )


def _word(reader: Fields, name: str, words: Sequence[str]) -> str | None:
    value = reader.optional_text(name)
    if value is not None and value not in words:
        reader.wrong(name, f"must be one of {', '.join(words)}")
        return None
    return value
