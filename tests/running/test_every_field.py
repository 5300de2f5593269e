"""Each field of each answer, malformed, left out, null, 1 for true: what runs is stopped, nothing is built upon it.

The fields are those of an honest answer. Wrong values of the right form are `test_every_must.py`'s.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from trio.testing import MockClock

from proctor.transport.retrying import TRIES
from running.lies import Lie
from running.scripted_children import hangs
from running.situations import BOUNDARY, CLEANING_UP, ENVELOPE, SITUATIONS, UNREAD, Situation
from running.test_every_operation import Endless, Work, work
from running.whole_world import Story, lost_before_commit, story

Path = tuple[str | int, ...]

ANY = "malformed missing null"
CONTENTS = ("server_capabilities", "history_events", "arguments", "workflow_arguments", "update_arguments",
            "query_arguments")  # fmt: skip
"""What has rules of its own: negotiation, replay, the codec."""

ACCEPTED: dict[str, dict[str, str]] = {
    # Only a hint of why there is no task; an order of work whose payloads nobody can read is told of as that.
    "poll": {
        "poll_status": ANY,
        "task.task_kind": "missing",
        "task.workflow_id": "missing null",
        "task.workflow_task_attempt": "missing",
        "task.lease_owner": "missing",
        "task.arguments": ANY,
        "task.next_history_page_token": "missing",
        "task.workflow_update_id": "missing",
        "task.workflow_command_id": "missing",
    },
    "queued poll": {
        "poll_status": ANY,
        "task.arguments": ANY,
        "task.deadlines": ANY,
        "task.deadlines.start_to_close": "missing null",
        "task.retry_policy": ANY,
    },
    "query_poll": {
        "poll_status": ANY,
        "task.workflow_id": "missing null",
        "task.workflow_arguments": ANY,
        "task.query_arguments": ANY,
        "task.run_status": ANY,
    },
    "validation": {
        "poll_status": ANY,
        "task.workflow_id": "missing null",
        "task.workflow_arguments": ANY,
        "task.update_arguments": ANY,
        "task.server_time": "missing null",
    },
    # History is read again from its beginning where no other place is named.
    "prepare": {"history_refresh_page_token": ANY},
    "control": {"history_refresh_page_token": ANY},
    "heartbeat": {"history_refresh_page_token": ANY},
    "outcome": {"history_refresh_page_token": "missing", "lease_owner": "missing"},
    "outcome that is retried": {"history_refresh_page_token": "missing", "lease_owner": "missing"},
    "recover": {"history_refresh_page_token": "missing", "recorded_at": ANY},
    # Who must stop needs no authority, and acts on no reason that a person gave.
    "control of a cancelled run": {
        "history_refresh_page_token": ANY,
        "lease_expires_at": ANY,
        "workflow_lease_expires_at": ANY,
        "server_time": ANY,
        "cancellation_request.reason": "malformed missing",
        "cancellation_request.source": ANY,
    },
    "history": {"task_id": "missing", "workflow_task_attempt": "missing", "next_history_page_token": "missing"},
    "claim_heartbeat": {
        "lease_expires_at": ANY,
        "reason": "malformed missing",
        "cancellation_request.delivery_sequence": "malformed missing",
        "cancellation_request.delivered_at": "missing",
    },
    "ordinary claim_heartbeat": {"reason": "malformed missing"},
    "deliver": {"operation_sequence": "missing", "operation_sequence_span": "missing null"},
    "deliver that waits": dict.fromkeys(BOUNDARY, "missing"),
    "register": {"heartbeat_interval_seconds": ANY},
}
"""By answer and field the ways to be wrong that change nothing."""


def paths(value: Any, *, before: Path = ()) -> Iterator[Path]:
    """Give the place of each field, those of objects inside it as well; of a list's objects the first one's."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {0: value[0]}
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != 0:
                yield (*before, key)
            if key not in CONTENTS:
                yield from paths(inner, before=(*before, key))


def at(body: Any, path: Path) -> Any:
    for key in path:
        body = body[key]
    return body


def ways_to_spoil(value: Any) -> tuple[str, ...]:
    if value is None:
        return ("malformed", "missing")
    one = isinstance(value, int) and value in (0, 1)
    return ("malformed", "missing", "null", "true for 1") if one else ("malformed", "missing", "null")


def spoilt(path: Path, how: str) -> Lie:
    def lie(body: Any) -> None:
        holder = at(body, path[:-1])
        if how == "missing":
            del holder[path[-1]]
        elif how == "true for 1":
            holder[path[-1]] = int(holder[path[-1]]) if isinstance(holder[path[-1]], bool) else bool(holder[path[-1]])
        else:
            holder[path[-1]] = None if how == "null" else {"malformed": [True]}

    return lie


async def honest_answer(situation: Situation) -> dict[str, Any]:
    """Give what the server would have said; the worker is told nothing."""
    said: dict[str, Any] = {}

    def lie(body: dict[str, Any]) -> None:
        if not said:
            said.update(copy.deepcopy(body))
        body.clear()

    await situation(lie)
    return said


@pytest.mark.parametrize("name", SITUATIONS)
async def test_nothing_is_built_on_an_answer_with_a_spoilt_field(autojump_clock: MockClock, name: str) -> None:
    said = await honest_answer(SITUATIONS[name])
    accepted: dict[str, str] = {}
    fields = [path for path in paths(said) if name not in CLEANING_UP or path[0] == "cancellation_cleanup"]
    for path in fields:
        for how in ways_to_spoil(at(said, path)):
            try:
                await SITUATIONS[name](spoilt(path, how))
            except (AssertionError, BaseExceptionGroup):
                known = ".".join(map(str, path))
                accepted[known] = f"{accepted.get(known, '')} {how}".strip()

    assert len(fields) >= 3
    assert accepted == ACCEPTED.get(name, {})


async def test_the_answers_that_were_spoilt_have_all_that_a_real_server_says(autojump_clock: MockClock) -> None:
    said: dict[str, set[str]] = defaultdict(set)

    def take_in(told: Story) -> None:
        for operation, status, body in told.network.seen:
            if status == 200:
                said[operation].update(body)
                said[f"task of {operation}"].update(body.get("task") or {})

    async with story(Work, *work()) as told:
        told.network.faults["outcome"] += [lost_before_commit] * TRIES
        await told.run()
        take_in(told)
    async with story(Endless, hangs()) as told:

        async def cancel() -> None:
            await told.children.started.wait()
            await told.wire.cancel_cooperatively(cleanup_timeout_seconds=60)

        await told.run(meanwhile=cancel)
        take_in(told)

    unread = {}
    for operation in ("poll", "checkpoint", "prepare", "control", "heartbeat", "outcome", "acknowledge", "recover",
                      "history", "claim_heartbeat", "deliver"):  # fmt: skip
        answer = await honest_answer(SITUATIONS[operation])
        if operation == "control":
            answer |= await honest_answer(SITUATIONS["control of a cancelled run"])
        unread[operation] = said[operation] - set(answer) - ENVELOPE
        unread[f"task of {operation}"] = said[f"task of {operation}"] - set(answer.get("task") or {})
    for name, fields in unread.items():
        assert fields ^ UNREAD.get(name, set()) == set(), name
