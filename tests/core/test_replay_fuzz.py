"""Mutated, truncated and foreign histories of every command: a decision or a typed refusal, never anything else."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.simulated_server import SimulatedServer
from portable_files import conclude, definitions, load, plain
from proctor.core.replay import Boundary, Commands, LocalCall, Unworkable
from proctor.errors import HistoryError, NonDeterminismError, PayloadError

WORKFLOWS = definitions(load("commands"))
TYPED = (HistoryError, NonDeterminismError, PayloadError)
DECISIONS = (Commands, LocalCall, Boundary, Unworkable)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@cache
def recorded(name: str, seed: int) -> str:
    """Give a valid history of a workflow as JSON, made by choosing in turn from what can happen."""
    import random

    drawn = random.Random(f"{name}-{seed}")
    server = SimulatedServer(drawn.choice, reopens=bool(seed % 2))
    server.start(name)
    for _ in range(16):
        decision = conclude(WORKFLOWS[name], server.events, [], queue="queue")
        if isinstance(decision, Boundary):
            if decision.prefix:
                server.complete([dict(command) for command in plain(Commands(decision.prefix))])
                continue
            fields = {"sequence": decision.sequence, "call_kind": decision.call_kind}
            fields |= {"sequence_span": decision.span} if decision.span > 1 else {}
            if decision.operation_sequence is not None:
                fields["operation_sequence"] = decision.operation_sequence
            server.deliver(fields)
            continue
        server.complete([dict(command) for command in plain(decision)])
        if server.closed:
            break
        if name == "cancellable" and not server.requested and drawn.random() < 0.3:
            server.request_cancellation()
        elif name == "streams":
            server.message()
        else:
            server.advance({"add": [1]}, {"note": ["n"]} if name == "conditions" else {})
    return json.dumps(server.events)


def history_of(data: st.DataObject) -> list[dict[str, Any]]:
    name = data.draw(st.sampled_from(sorted(WORKFLOWS)))
    events: list[dict[str, Any]] = json.loads(recorded(name, data.draw(st.integers(0, 30))))
    return events


def survives(name: str, history: list[Any], **more: Any) -> object:
    """Replay; anything but a decision or a typed refusal is an error of the test."""
    try:
        decision = conclude(WORKFLOWS[name], history, [], **more)
    except TYPED as exc:
        return exc
    assert isinstance(decision, DECISIONS)
    return decision


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_any_history_under_any_code_gives_a_decision_or_a_typed_refusal(data: st.DataObject) -> None:
    history = history_of(data)
    for _ in range(data.draw(st.integers(0, 4))):
        mutate(history, data)
    name = data.draw(st.sampled_from(sorted(WORKFLOWS)))

    outcome = survives(name, history[: data.draw(st.integers(0, len(history)))], prepared=data.draw(st.booleans()))

    if isinstance(outcome, NonDeterminismError):
        assert outcome.expected
        assert outcome.found
    if isinstance(outcome, HistoryError):
        assert outcome.position is None or 0 <= outcome.position < len(history)


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_every_prefix_of_a_valid_history_gives_a_decision(name: str) -> None:
    for seed in range(4):
        history = json.loads(recorded(name, seed))
        for length in range(2, len(history) + 1):
            assert isinstance(survives(name, history[:length]), DECISIONS)


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_history_without_one_of_its_events_is_cut_and_refused_there(name: str) -> None:
    history = json.loads(recorded(name, 1))
    for gone in range(1, len(history) - 1):
        outcome = survives(name, history[:gone] + history[gone + 1 :])

        assert isinstance(outcome, HistoryError)
        assert outcome.position == gone


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_two_events_out_of_order_are_refused(data: st.DataObject) -> None:
    history = history_of(data)
    first = data.draw(st.integers(0, len(history) - 2))
    second = data.draw(st.integers(first + 1, len(history) - 1))
    history[first], history[second] = history[second], history[first]

    assert isinstance(survives("activities", history), HistoryError)


def mutate(history: list[dict[str, Any]], data: st.DataObject) -> None:
    if not history:
        return
    here = st.integers(0, len(history) - 1)
    event = history[data.draw(here)]
    target = data.draw(st.sampled_from([event, event.get("payload")]))
    match data.draw(st.sampled_from(["value", "remove", "new", "inner", "drop", "repeat", "swap", "rename", "bare"])):
        case "value" if isinstance(target, dict) and target:
            target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
        case "remove" if isinstance(target, dict) and target:
            del target[data.draw(st.sampled_from(sorted(target)))]
        case "new" if isinstance(target, dict):
            target[data.draw(st.sampled_from(FIELDS))] = data.draw(JSON)
        case "inner" if isinstance(target, dict):
            inner = [value for value in target.values() if isinstance(value, dict) and value]
            inner += [entry for value in target.values() if isinstance(value, list) for entry in value if entry]
            if inner and isinstance(inner[0], dict):
                inner[0][data.draw(st.sampled_from(sorted(inner[0])))] = data.draw(JSON)
        case "drop":
            history.remove(event)
        case "repeat":
            history.insert(data.draw(here), json.loads(json.dumps(event)))
        case "swap":
            first, second = data.draw(here), data.draw(here)
            history[first], history[second] = history[second], history[first]
        case "rename":
            event["event_type"] = data.draw(st.sampled_from(EVENT_TYPES))
        case "bare":
            for other in history:
                other.pop("sequence", None)
                other.pop("id", None)


FIELDS = [
    "sequence",
    "workflow_sequence",
    "payload_codec",
    "result",
    "timestamp",
    "cancellation_policy",
    "activity",
    "exception",
    "version",
    "call_kind",
    "sequence_span",
    "operation_sequence",
    "execution_mode",
    "condition_wait_id",
    "timer_kind",
    "parallel_group_path",
    "parallel_group_id",
    "service_call",
    "wait_for",
    "entries",
    "cancellation",
    "member_key",
    "arguments",
    "value",
]
EVENT_TYPES = sorted(
    {event["event_type"] for name in WORKFLOWS for seed in range(6) for event in json.loads(recorded(name, seed))}
    | {"WorkflowCancelled", "CancellationScopeOpened", "ActivityRetryScheduled", "TimerCancelled", "Unheard"}
)
