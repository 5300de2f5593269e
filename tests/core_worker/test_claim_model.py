"""Claim, epoch, lease, cancellation and stop receipt against a model: two workers, one truth, a hostile network.

Never two publications, never a publication after lost authority, never an acknowledgement before the proof.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from core_worker.claim_model import Holder, Server

_NUMBERS = st.sampled_from([0, 0, 0, 0, 1, 2])
_SECONDS = st.sampled_from([0.01, 0.01, 0.2, 0.2, 0.75, 0.75, 1.0, 2.5, 4.99, 6.0, 10.0])
LIES = [
        ("active", True), ("active", "yes"), ("renewed", True), ("stop_required", False), ("reason", None),
        ("lease_owner", "another"), ("workflow_task_attempt", 99), ("workflow_task_id", "another"),
        ("activity_attempt_id", "A99"), ("lease_expires_at", "2020-01-01T00:00:00Z"), ("server_time", "now"),
        ("heartbeat_deadline_at", None), ("fenced", "yes"), ("cancellation_request", {}), ("recorded", 1),
        ("worker_attempt_id", "another"), ("claim_released", True), ("acknowledged", "yes"), ("history_event_id", None),
]  # fmt: skip


class ClaimModel(RuleBasedStateMachine):
    """Each rule is one thing that can happen anywhere; every interleaving must keep the promises."""

    @initialize(
        offset=st.sampled_from([-3600.0, 0.0, 86400.0]),
        shift=st.sampled_from([0.0, 1e6]),
        calls=st.sampled_from([0, 1, 3, 3, 3]),
    )
    def begin(self, offset: float, shift: float, calls: int) -> None:
        """Start anywhere from an unleased task to a running child, most often there, where most can go wrong."""
        self.server = Server(offset)
        self.shift = shift
        self.holders: list[Holder] = []
        self.a_worker_leases("w1")
        for _ in range(calls):
            self.a_call_goes_well(0)

    def _one(self, number: int) -> Holder | None:
        return self.holders[-1 - number % len(self.holders)] if self.holders else None

    @rule(seconds=_SECONDS)
    def time_passes(self, seconds: float) -> None:
        # In small steps, as the deadlines of supervisor and worker fire at their instants and not afterwards.
        while seconds > 1e-9:
            step = min(seconds, 0.1)
            self.server.now += step
            seconds -= step
            for holder in self.holders:
                holder.enforce()
            self.no_child_runs_beyond_the_lease_its_worker_knew_of()

    @precondition(lambda self: self.server.leasable)
    @rule(owner=st.sampled_from(["w1", "w2"]))
    def a_worker_leases(self, owner: str) -> None:
        epoch = self.server.lease(owner)
        self.holders = [*self.holders[-3:], Holder(self.server, owner, epoch, self.shift, self.server.lease_until)]

    @rule(number=_NUMBERS)
    def a_worker_goes_on(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.step()

    @rule(number=_NUMBERS)
    def a_call_goes_well(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.step()
            holder.serve()
            holder.arrive()

    @rule(number=_NUMBERS, seconds=st.sampled_from([0.1, 0.75, 1.0]), times=st.integers(1, 6))
    def all_goes_well_for_a_while(self, number: int, seconds: float, times: int) -> None:
        for _ in range(times):
            self.a_call_goes_well(number)
            self.time_passes(seconds)

    @rule(number=_NUMBERS, there=st.sampled_from([0.0, 2.0]), back=st.sampled_from([1.0, 2.5, 6.0]))
    def a_call_is_slow(self, number: int, there: float, back: float) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.step()
            self.time_passes(there)
            holder.serve()
            self.time_passes(back)
            holder.arrive()

    @rule(number=_NUMBERS)
    def the_child_beats(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.beat()

    @rule(number=_NUMBERS)
    def the_server_sees_a_call(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.serve()

    @rule(number=_NUMBERS)
    def an_answer_arrives_or_is_lost(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.arrive()

    @rule(number=_NUMBERS, lie=st.sampled_from(LIES))
    def the_server_lies(self, number: int, lie: tuple[str, Any]) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.serve()
            holder.arrive(lambda body: body.__setitem__(*lie) if lie[0] in body else None)

    @rule(number=_NUMBERS, raises=st.booleans())
    def the_handler_ends(self, number: int, raises: bool) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.finish(raises=raises)

    @rule(number=_NUMBERS)
    def a_stop_is_proven(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.prove()

    @rule(number=_NUMBERS)
    def a_stop_cannot_be_proven(self, number: int) -> None:
        holder = self._one(number)
        if holder is not None:
            holder.fail_to_prove()

    @rule()
    def the_run_is_cancelled(self) -> None:
        self.server.request_cancellation()

    @precondition(lambda self: self.server.epoch and self.server.owner is not None)
    @rule()
    def the_registration_is_replaced(self) -> None:
        self.server.replace_registration()

    @invariant()
    def history_has_at_most_one_terminal_event(self) -> None:
        if hasattr(self, "server"):
            assert len(self.server.terminal) <= 1

    @invariant()
    def no_attempt_is_both_published_and_acknowledged(self) -> None:
        if hasattr(self, "server"):
            assert not any(one.published and one.receipts for one in self.server.attempts)

    @invariant()
    def no_child_runs_beyond_the_lease_its_worker_knew_of(self) -> None:
        for holder in getattr(self, "holders", []):
            if holder.child == "running":
                assert self.server.now <= holder.confirmed_lease

    @invariant()
    def an_ended_claim_sends_nothing_more(self) -> None:
        for holder in getattr(self, "holders", []):
            assert holder.over is None or holder.flight is None


TestClaimModel = ClaimModel.TestCase
TestClaimModel.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_ten_thousand_random_steps_keep_every_promise_and_reach_every_end() -> None:
    seed = secrets.randbits(32)
    draw = random.Random(seed)
    seen: Counter[str] = Counter()
    steps = 0
    while steps < 10_000:
        model = ClaimModel()
        model.begin(draw.choice([-3600.0, 0.0, 86400.0]), draw.choice([0.0, 1e6]), draw.choice([0, 1, 3, 3]))
        for _ in range(30):
            steps += 1
            try:
                _random_step(model, draw)
                for holds in _PROMISES:
                    holds(model)
            except AssertionError as exc:
                raise AssertionError(f"seed {seed}, step {steps}: {exc}") from exc
        seen.update(holder.over for holder in model.holders if holder.over is not None)

    missing = {end for end in _ENDS if not seen[end]}
    assert not missing, f"seed {seed}: this walk proves nothing about {missing}: {seen}"


def _random_step(model: ClaimModel, draw: random.Random) -> None:
    number = draw.choice([0, 0, 0, 1, 2])
    kind = draw.choices(
        [
            "well",
            "well_on",
            "slow",
            "go",
            "serve",
            "arrive",
            "beat",
            "time",
            "lease",
            "lie",
            "end",
            "proof",
            "no_proof",
            "cancel",
            "replace",
        ],
        [6, 6, 2, 3, 3, 3, 3, 5, 2, 2, 2, 4, 1, 1, 0.5],
    )[0]
    if kind == "well":
        model.a_call_goes_well(number)
    elif kind == "well_on":
        model.all_goes_well_for_a_while(number, draw.choice([0.1, 0.75]), draw.randint(1, 6))
    elif kind == "slow":
        model.a_call_is_slow(number, draw.choice([0.0, 2.0]), draw.choice([1.0, 2.5, 6.0]))
    elif kind == "time":
        model.time_passes(draw.choice([0.01, 0.2, 0.75, 2.5, 10.0]))
    elif kind == "lease" and model.server.leasable:
        model.a_worker_leases(draw.choice(["w1", "w2"]))
    elif kind == "lie":
        model.the_server_lies(number, draw.choice(LIES))
    elif kind == "end":
        model.the_handler_ends(number, draw.random() < 0.3)
    elif kind == "replace" and model.server.owner is not None:
        model.the_registration_is_replaced()
    else:
        plain = {
            "go": model.a_worker_goes_on, "serve": model.the_server_sees_a_call, "beat": model.the_child_beats,
            "arrive": model.an_answer_arrives_or_is_lost, "proof": model.a_stop_is_proven,
            "no_proof": model.a_stop_cannot_be_proven,
        }  # fmt: skip
        if kind in plain:
            plain[kind](number)
        elif kind == "cancel":
            model.the_run_is_cancelled()


_PROMISES = (
    ClaimModel.history_has_at_most_one_terminal_event,
    ClaimModel.no_attempt_is_both_published_and_acknowledged,
    ClaimModel.no_child_runs_beyond_the_lease_its_worker_knew_of,
    ClaimModel.an_ended_claim_sends_nothing_more,
)
_ENDS = (
    "published", "acknowledged", "capacity_kept", "authority_spent", "protocol_breach", "outcome_failed",
    "prepare_failed", "stale_worker_registration",
)  # fmt: skip
