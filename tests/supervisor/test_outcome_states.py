"""Whatever happened, in whichever order: one outcome, by the stated rule."""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proctor_supervisor import Completed, Failed, Stopped, StopPolicy, StopReason, frames, messages
from proctor_supervisor.ladder import Action, Ladder
from proctor_supervisor.outcome import CapturedOutput, Step
from proctor_supervisor.owner.settling import Delivery, Facts, decide

SERIAL = 7
_INSTANT = st.floats(0, 20, allow_nan=False)
_GRACE = st.sampled_from([0.0, 0.5, 2.0])
_POLICIES = st.builds(StopPolicy, notice_grace=_GRACE, raise_grace=_GRACE, stack_budget=_GRACE, kill_budget=_GRACE)


@st.composite
def _ladders(draw: st.DrawFn) -> tuple[Ladder, list[Action]]:
    """A stop that was begun at 5 and went as far as random events drove it; with every action it took."""
    now = 5.0
    at_once = draw(st.booleans())
    ladder, actions = Ladder.begin(draw(st.sampled_from(StopReason)), "", draw(_POLICIES), now, at_once=at_once)
    taken = list(actions)
    for event in draw(st.lists(st.sampled_from(["wait", "due", "captured", "grace_ended"]), max_size=12)):
        if event == "wait":
            now += draw(st.floats(0, 3))
        if event == "due":
            now = max(now, min(ladder.wakes_at, 1e6))
        if event == "captured":
            ladder, actions = ladder.captured(now)
        elif event == "grace_ended":
            ladder, actions = ladder.grace_ended(now)
        else:
            ladder, actions = ladder.advance(now)
        taken += actions
    return ladder, taken


@given(_ladders())
def test_a_stop_only_ever_goes_up_and_kills_and_reports_once(driven: tuple[Ladder, list[Action]]) -> None:
    ladder, taken = driven
    steps = [step.step for step in ladder.steps]
    order = [Step.NOTICE, Step.RAISE, Step.KILL]

    assert steps == [step for step in order if step in steps], "out of order, or twice"
    assert [step.at for step in ladder.steps] == sorted(step.at for step in ladder.steps)
    assert taken.count(Action.KILL) == int(ladder.killing) == steps.count(Step.KILL)
    assert taken.count(Action.RAISE) == steps.count(Step.RAISE)
    assert taken.count(Action.REPORT_UNCONFIRMED) <= taken.count(Action.KILL)
    if ladder.reason.is_immediate:
        assert steps == [Step.KILL]


def _failure_frame(cancelled: bool) -> frames.Frame:
    facts = {
        "kind": "raised", "type_name": "T", "module": "m", "message": "", "traceback": "", "cancelled": cancelled,
        "non_retryable": False, "causes": [],
    }  # fmt: skip
    return frames.Frame(frames.Kind.FAILURE, json.dumps(facts).encode())


_DELIVERIES = st.one_of(
    st.none(),
    st.builds(Delivery, st.just(frames.Frame(frames.Kind.RESULT, b"value", beats=3)), _INSTANT),
    st.builds(Delivery, st.booleans().map(_failure_frame), _INSTANT),
    st.builds(Delivery, st.builds(frames.Frame, st.just(frames.Kind.FAILURE), st.binary(max_size=40)), _INSTANT),
)  # fmt: skip
_EXITS = st.one_of(st.tuples(st.integers(0, 255), st.none()), st.tuples(st.none(), st.sampled_from([6, 9, 11, 15, 42])))
_ASKED = st.none() | st.tuples(st.sampled_from(StopReason), st.text(max_size=5))


@st.composite
def _facts(draw: st.DrawFn) -> Facts:
    settlement: messages.Settled | None = None
    if draw(st.booleans()):
        exit_code, by_signal = draw(_EXITS)
        stop: dict[str, Any] | None = None
        if draw(st.booleans()):
            ladder, _ = draw(_ladders())
            stop = {
                "attempt": draw(st.sampled_from([SERIAL, SERIAL - 1, 0])),
                "reason": str(ladder.reason),
                "detail": draw(st.sampled_from(["", "noise"])),
                "begun_at": ladder.begun_at,
                "steps": [[str(step.step), step.at] for step in ladder.steps],
                "stack": "",
                "started_at": 1,
            }
        settlement = messages.Settled(
            1, by_signal if by_signal is not None else (exit_code or 0) << 8, draw(st.booleans()),
            draw(st.sampled_from([SERIAL, SERIAL - 1])), draw(st.integers(0, 9)), 0, 0.0, 0.0, 0, 25.0,
            draw(st.booleans()), 1, (), ((8, 9),), stop,
        )  # fmt: skip
    return Facts(
        serial=SERIAL,
        pid=42,
        started_at=0.0,
        ended_at=25.0,
        settlement=settlement,
        delivery=draw(_DELIVERIES),
        breach=draw(st.none() | st.just("noise")),
        asked=draw(_ASKED),
        output=CapturedOutput(),
        delivered_beats=draw(st.integers(0, 5)),
    )


@given(_facts())
def test_any_facts_come_to_one_outcome_by_the_rule(facts: Facts) -> None:
    outcome = decide(facts)

    settlement, delivery = facts.settlement, facts.delivery
    returned = delivery is not None and delivery.frame.kind == frames.Kind.RESULT
    stop = settlement.stop if settlement is not None else None
    ours = stop is not None and stop["attempt"] == SERIAL
    if isinstance(outcome, Completed):
        assert returned
        assert facts.breach is None
    if isinstance(outcome, Stopped):
        assert ours or (settlement is None and facts.asked is not None), "a stop that nobody began"
        assert outcome.proof.pid == facts.pid
        assert outcome.proof.evidence == ("reaped" if settlement is not None else "pidfd")
    if isinstance(outcome, Failed) and settlement is not None:
        code = os.waitstatus_to_exitcode(settlement.status)
        assert (outcome.exit_code, outcome.signal) == ((code, None) if code >= 0 else (None, -code))
        assert outcome.sent_by_us is settlement.sent_by_us
    if facts.breach is not None and settlement is not None:
        if stop is not None and ours and stop["detail"] != "noise":
            assert isinstance(outcome, Stopped), "noise during a stop made something else of it"
        else:
            assert isinstance(outcome, Failed)
            assert outcome.kind == "protocol"
    elif ours and returned:
        assert stop is not None
        assert delivery is not None
        forced = [at for step, at in stop["steps"] if step != "notice"]
        limit = stop["begun_at"] if StopReason(stop["reason"]).is_deadline else min(forced, default=100.0)
        assert isinstance(outcome, Completed if delivery.received_at < limit else Stopped)
    elif settlement is not None and returned:
        assert isinstance(outcome, Completed)
    assert 0 <= outcome.heartbeats_dropped <= outcome.heartbeats
    assert outcome.descendants_count >= len(outcome.descendants)


@given(_facts())
def test_the_same_facts_come_to_the_same_outcome(facts: Facts) -> None:
    assert decide(facts) == decide(facts)
