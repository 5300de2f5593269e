"""The stop ladder climbs in one order, only upwards, and ends in a kill or a report."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from proctor_supervisor.ladder import Action, Ladder
from proctor_supervisor.options import StopPolicy
from proctor_supervisor.outcome import Step, StopReason

POLICY = StopPolicy(notice_grace=1.0, raise_grace=2.0, stack_budget=0.25, kill_budget=4.0)
_GRACE = st.floats(0, 5, allow_nan=False)


def _begin(reason: StopReason = StopReason.CANCELLED, policy: StopPolicy = POLICY) -> tuple[Ladder, tuple[Action, ...]]:
    return Ladder.begin(reason, "why", policy, now=10.0)


def test_the_whole_ladder_is_notice_capture_raise_capture_kill_report() -> None:
    ladder, taken = _begin()
    assert taken == (Action.NOTICE,)
    assert ladder.wakes_at == 11.0

    seen = [*taken]
    while ladder.wakes_at != math.inf:
        ladder, actions = ladder.advance(ladder.wakes_at)
        seen += actions

    assert seen == [
        Action.NOTICE,
        Action.CAPTURE,
        Action.RAISE,
        Action.CAPTURE,
        Action.KILL,
        Action.REPORT_UNCONFIRMED,
    ]
    assert [(taken_step.step, taken_step.at) for taken_step in ladder.steps] == [
        (Step.NOTICE, 10.0),
        (Step.RAISE, 11.25),
        (Step.KILL, 13.5),
    ]


def test_an_arrived_stack_hastens_the_forced_step() -> None:
    ladder, _ = _begin()
    ladder, _ = ladder.advance(11.0)

    ladder, actions = ladder.captured(11.01)

    assert actions == (Action.RAISE,)
    assert ladder.forced_at == 11.01


def test_nothing_happens_before_its_instant() -> None:
    ladder, _ = _begin()

    assert ladder.advance(10.999) == (ladder, ())


def test_graces_of_zero_skip_their_steps() -> None:
    ladder, actions = _begin(policy=StopPolicy(notice_grace=0, raise_grace=0, stack_budget=0))

    assert actions == (Action.NOTICE, Action.KILL)
    assert [taken.step for taken in ladder.steps] == [Step.KILL]


def test_lost_authority_and_a_dead_owner_kill_at_once() -> None:
    for reason in (StopReason.AUTHORITY_LOST, StopReason.OWNER_DEATH):
        _, actions = _begin(reason)
        assert actions == (Action.KILL,)


def test_a_stop_at_once_gives_no_notice() -> None:
    _, actions = Ladder.begin(StopReason.CANCELLED, "", POLICY, 0.0, at_once=True)

    assert actions == (Action.KILL,)


def test_authority_that_ends_during_a_stop_kills_once() -> None:
    ladder, _ = _begin()

    ladder, first = ladder.grace_ended(10.5)
    ladder, second = ladder.grace_ended(10.6)

    assert (first, second) == ((Action.KILL,), ())


@given(
    st.builds(StopPolicy, notice_grace=_GRACE, raise_grace=_GRACE, stack_budget=_GRACE, kill_budget=_GRACE),
    st.sampled_from(StopReason),
    st.lists(st.tuples(st.sampled_from(["advance", "captured", "authority"]), st.floats(0, 3)), max_size=20),
)
def test_any_course_of_events_kills_at_most_once_and_within_the_budget(
    policy: StopPolicy, reason: StopReason, course: list[tuple[str, float]]
) -> None:
    now = 100.0
    ladder, actions = Ladder.begin(reason, "", policy, now)
    seen = [*actions]
    for event, pause in course:
        now += pause
        match event:
            case "advance":
                ladder, actions = ladder.advance(now)
            case "captured":
                ladder, actions = ladder.captured(now)
            case _:
                ladder, actions = ladder.grace_ended(now)
        seen += actions
    while ladder.wakes_at != math.inf:
        now = max(now, ladder.wakes_at)
        ladder, actions = ladder.advance(now)
        seen += actions

    assert seen.count(Action.KILL) == 1
    assert seen.count(Action.NOTICE) <= 1
    assert seen.count(Action.RAISE) <= 1
    order = [action for action in seen if action is not Action.CAPTURE]
    assert order == sorted(order, key=list(Action).index)
    assert seen[-1] is Action.REPORT_UNCONFIRMED
    assert [step.at for step in ladder.steps] == sorted(step.at for step in ladder.steps)
