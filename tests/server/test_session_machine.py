"""Any order of asking, renewing, closing, dying and waiting: one holder at most, and an end that is the end."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proctor.server.rules.refusal import Refusal
from proctor.server.rules.rows import Registration
from proctor.server.rules.sessions import leases
from proctor.server.rules.sessions.shapes import SessionOptions, WorkerSession
from server.wire import START

STALE_SECONDS = 30
WORKERS, SESSIONS = ("a", "b", "c"), ("s", "t")
workers, sessions = st.sampled_from(WORKERS), st.sampled_from(SESSIONS)


class Sessions(RuleBasedStateMachine):
    """Three workers, two names, and a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.alive: dict[str, Registration] = {}
        self.rows: dict[str, WorkerSession] = {}
        self.first: dict[str, WorkerSession] = {}
        for name in WORKERS:
            self.register(name)

    def look(self, session_id: str) -> WorkerSession | None:
        known = self.rows.get(session_id)
        if known is None:
            return None
        holder = self.alive.get(known.lease_owner)
        self.rows[session_id] = leases.refresh(known, holder, now=self.now, stale_seconds=STALE_SECONDS)
        return self.rows[session_id]

    def held(self, worker: str) -> int:
        return sum(
            row.status == "active" and row.lease_owner == worker and row.lease_expires_at > self.now
            for row in self.rows.values()
        )

    @rule(worker=workers)
    def register(self, worker: str) -> None:
        self.alive[worker] = Registration(
            namespace="default",
            worker_id=worker,
            token=worker,
            task_queue="q",
            runtime="python",
            protocol="1.20",
            max_concurrent_worker_sessions=1,
            registered_at=self.now,
            last_heartbeat_at=self.now,
        )

    @rule(worker=workers)
    def leave(self, worker: str) -> None:
        self.alive.pop(worker, None)

    @rule(seconds=st.sampled_from([0, 1, 9, 10, 31, 99]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(
        worker=workers,
        session_id=sessions,
        lease=st.sampled_from([10, 60]),
        ttl=st.sampled_from([50, 500]),
        may_create=st.booleans(),
        again=st.booleans(),
        running=st.none() | st.integers(0, 2),
    )
    def acquire(
        self, worker: str, session_id: str, lease: int, ttl: int, may_create: bool, again: bool, running: int | None
    ) -> None:
        registration = self.alive.get(worker)
        if registration is None:
            return
        before, held = self.look(session_id), self.held(worker)
        options = SessionOptions(
            session_id=session_id,
            lease_seconds=lease,
            ttl_seconds=ttl,
            create_if_missing=may_create,
            allow_reacquire_after_failure=again,
        ).filled("q")
        try:
            outcome, after = leases.admit(before, options, registration, now=self.now, held=held, running=running)
        except Refusal:
            return
        assert (after.status, after.lease_owner) == ("active", worker)
        assert after.lease_expires_at == self.now + timedelta(seconds=lease)
        if before is None:
            assert (outcome, may_create) == ("created", True)
            self.first[session_id] = after
        elif before.status == "active":
            assert (outcome, before.lease_owner) == ("reused", worker)
            assert running is None or running < before.options.activities
        else:
            assert outcome == "reacquired"
            assert before.status in ("expired", "orphaned")
            assert before.failure_reason != "ttl_expired"
            assert again
            assert before.options.allow_reacquire_after_failure
        assert outcome == "reused" or held == 0
        self.rows[session_id] = after

    @rule(worker=workers, session_id=sessions)
    def renew(self, worker: str, session_id: str) -> None:
        before = self.look(session_id)
        try:
            after = leases.renew(before, session_id, worker, now=self.now, seconds=None)
        except Refusal:
            assert before is None or before.status != "active" or before.lease_owner != worker
            return
        assert before is not None
        assert (before.status, before.lease_owner) == ("active", worker)
        assert self.is_present(worker)
        self.rows[session_id] = after

    @rule(worker=workers, session_id=sessions)
    def close(self, worker: str, session_id: str) -> None:
        before = self.look(session_id)
        try:
            outcome, after = leases.close(before, session_id, worker, now=self.now)
        except Refusal:
            assert before is None or before.lease_owner != worker
            return
        assert before is not None
        assert outcome == ("already_closed" if before.status == "closed" else "closed")
        assert after.status == "closed"
        self.rows[session_id] = after

    def is_present(self, worker: str) -> bool:
        known = self.alive.get(worker)
        return known is not None and self.now - known.last_heartbeat_at <= timedelta(seconds=STALE_SECONDS)

    @invariant()
    def the_life_of_a_session_never_moves_and_its_end_is_final(self) -> None:
        for session_id, row in list(self.rows.items()):
            first = self.first[session_id]
            assert (row.ttl_expires_at, row.created_at) == (first.ttl_expires_at, first.created_at)
            now = self.look(session_id)
            assert now is not None
            if row.status == "closed" or row.failure_reason == "ttl_expired":
                assert now == row
            if now.status == "active":
                assert self.now < min(now.ttl_expires_at, now.lease_expires_at)
                assert self.is_present(now.lease_owner)
            if first.ttl_expires_at <= self.now:
                assert now.status == "closed" or now.failure_reason == "ttl_expired"


def test_looking_twice_changes_nothing_more() -> None:
    row = WorkerSession(
        namespace="default",
        options=SessionOptions(session_id="s"),
        lease_owner="a",
        lease_expires_at=START,
        ttl_expires_at=START + timedelta(seconds=9),
        last_heartbeat_at=START,
        created_at=START,
        updated_at=START,
    )

    def at(instant: datetime, session: WorkerSession) -> WorkerSession:
        return leases.refresh(session, None, now=instant, stale_seconds=STALE_SECONDS)

    expired = at(START, row)
    assert at(START + timedelta(seconds=1), expired) == expired
    ended = at(START + timedelta(seconds=9), expired)
    assert (expired.failure_reason, ended.failure_reason) == ("lease_expired", "ttl_expired")
    assert at(START + timedelta(days=1), ended) == ended == msgspec.structs.replace(ended)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
