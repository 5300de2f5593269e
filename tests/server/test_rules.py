"""The pure rules without server or database: what must hold after any sequence of operations, allowed or refused."""

from __future__ import annotations

import contextlib
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proctor.server.rules import cancellation, runs, tasks
from proctor.server.rules.book import RunBook, Settings
from proctor.server.rules.commands.batch import apply_commands, apply_terminal, parse_commands
from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields
from proctor.server.rules.local.acknowledge import acknowledge
from proctor.server.rules.local.control import control, heartbeat
from proctor.server.rules.local.descriptor import Descriptor, read_descriptor
from proctor.server.rules.local.outcome import read_report, record_outcome
from proctor.server.rules.local.prepare import prepare
from proctor.server.rules.local.recover import recover
from proctor.server.rules.local.timeouts import time_out_elapsed
from proctor.server.rules.refusal import Refusal
from proctor.server.rules.rows import Attempt, Boundary, Execution, Registration, Task
from server.wire import ENVELOPE, WITH_POLICIES, describe_call, side_effect

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TERMINAL_EVENTS = {"WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTimedOut"}
CLOSING_EVENTS = {"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "retried": {"retry_policy": {"max_attempts": 3, "backoff_seconds": [2]}},
    "bounded": {
        "start_to_close_timeout": 4,
        "schedule_to_close_timeout": 9,
        "heartbeat_timeout": 2,
        "retry_policy": {"max_attempts": 3, "backoff_seconds": [1, 5]},
    },
    "waiting": {"cancellation_policy": "wait_cancellation_completed"},
}
REPORTS: dict[str, dict[str, Any]] = {
    "completed": {"outcome": "completed", "result": ENVELOPE},
    "failed": {"outcome": "failed", "message": "no"},
    "final": {"outcome": "failed", "message": "no", "non_retryable": True},
    "timed_out": {"outcome": "timed_out"},
}


def registration(token: str = "one") -> Registration:
    return Registration(
        namespace="default",
        worker_id="w",
        token=token,
        task_queue="q",
        runtime="python",
        protocol="1.20",
        workflow_types=("t",),
        capabilities=WITH_POLICIES,
        registered_at=NOW,
        last_heartbeat_at=NOW,
    )


def new_book(**timeouts: int | None) -> RunBook:
    numbers = itertools.count(1)
    run = runs.new_run(
        namespace="default",
        workflow_id="wf",
        run_id="R",
        run_number=1,
        workflow_type="t",
        task_queue="q",
        now=NOW,
        execution_timeout_seconds=timeouts.get("execution"),
        run_timeout_seconds=timeouts.get("run"),
        memo=None,
        search_attributes=None,
    )
    book = RunBook(run, now=NOW, new_id=lambda: f"id-{next(numbers):06d}", settings=Settings())
    runs.begin(book)
    return book


def descriptor(**changes: Any) -> Descriptor:
    return read_descriptor({"descriptor": describe_call(**changes)}, limit=1000, refuse_as="invalid")


class AnyWorkerAgainstTheRules(RuleBasedStateMachine):
    """A worker that does anything at any time, right or wrong, and a clock that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.book = new_book(run=200)
        self.held: list[Task] = []
        self.nonces = itertools.count(1)
        self.closed_at: int | None = None

    def call(self) -> tuple[Execution, Attempt] | None:
        """Give the newest call that has an attempt."""
        rows = [row for row in self.book.executions.values() if row.current_attempt_id]
        return (rows[-1], self.book.attempts[str(rows[-1].current_attempt_id)]) if rows else None

    def hosting(self, attempt: Attempt) -> Task:
        return self.book.tasks[attempt.task_id]

    def touch(self) -> None:
        enforce_deadlines(self.book)

    @rule(seconds=st.sampled_from([0.5, 1, 3, 6, 10, 40]))
    def time_passes(self, seconds: float) -> None:
        self.book.now += timedelta(seconds=seconds)
        self.touch()

    @rule()
    def lease(self) -> None:
        self.touch()
        task = self.book.open_task()
        if task is None:
            return
        if task.status == "leased" and task.lease_expires_at is not None and task.lease_expires_at <= self.book.now:
            task = tasks.release(self.book, task)
        if task.status == "ready" and task.available_at <= self.book.now:
            time_out_elapsed(self.book)
            self.held.append(tasks.lease(self.book, task, registration(), "1.20"))

    @precondition(lambda self: self.held)
    @rule(kind=st.sampled_from(sorted(CALLS)), offset=st.sampled_from([0, 0, 0, 1, -1]), old=st.booleans())
    def prepare_call(self, kind: str, offset: int, old: bool) -> None:
        self.touch()
        task = self.held[0 if old else -1]
        waiting = next(self.book.open_executions(), None)
        sequence = self.book.run.next_sequence if waiting is None else waiting.sequence
        self.attempt(
            lambda: prepare(
                self.book,
                self.book.tasks[task.task_id],
                registration(),
                owner="w",
                epoch=task.attempt,
                sequence=max(1, sequence + offset),
                nonce=f"n{next(self.nonces)}",
                descriptor=descriptor(**CALLS[kind]),
                reused_nonces=frozenset(),
            )
        )

    @rule(report=st.sampled_from(sorted(REPORTS)))
    def report_outcome(self, report: str) -> None:
        self.touch()
        if (found := self.call()) is not None:
            read = read_report({"report": REPORTS[report]}, limit=1000)
            self.attempt(lambda: record_outcome(self.book, self.hosting(found[1]), *found, registration(), read))

    @rule(renew=st.booleans())
    def ask_control(self, renew: bool) -> None:
        self.touch()
        if (found := self.call()) is not None:
            self.attempt(lambda: control(self.book, self.hosting(found[1]), *found, registration(), renew_lease=renew))

    @rule()
    def beat(self) -> None:
        self.touch()
        if (found := self.call()) is not None:
            self.attempt(lambda: heartbeat(self.book, self.hosting(found[1]), *found, registration(), progress={}))

    @precondition(lambda self: self.held)
    @rule(kind=st.sampled_from(sorted(CALLS)))
    def recover_call(self, kind: str) -> None:
        self.touch()
        task, found = self.held[-1], self.call()
        if found is not None:
            self.attempt(
                lambda: recover(
                    self.book,
                    self.book.tasks[task.task_id],
                    owner="w",
                    epoch=task.attempt,
                    sequence=found[0].sequence,
                    descriptor=descriptor(**CALLS[kind]),
                )
            )

    @rule()
    def request_cancellation(self) -> None:
        self.touch()
        self.attempt(lambda: cancellation.request(self.book, reason=None, cleanup_timeout_seconds=30))

    @precondition(lambda self: self.held and self.book.run.cancellation)
    @rule(offset=st.sampled_from([0, 0, 1]))
    def deliver(self, offset: int) -> None:
        self.touch()
        request = self.book.run.cancellation
        task, found = self.held[-1], self.call()
        assert request is not None
        sequence = self.book.run.next_sequence if found is None else found[0].sequence
        boundary = Boundary(sequence=sequence + offset, call_kind="local_activity")

        def act() -> None:
            owned = tasks.owned(self.book, task.task_id, "w", task.attempt)
            cancellation.deliver(self.book, owned, request_id=request.request_id, boundary=boundary)

        self.attempt(act)

    @precondition(lambda self: self.book.run.cancellation)
    @rule()
    def acknowledge_stop(self) -> None:
        self.touch()
        request = self.book.run.cancellation
        assert request is not None
        if (found := self.call()) is not None:
            self.attempt(lambda: acknowledge(self.book, *found, request_id=request.request_id))

    @precondition(lambda self: self.held)
    @rule(kind=st.sampled_from(["waiting", "broken", "markers", "complete", "fail"]))
    def end_claim(self, kind: str) -> None:
        self.touch()
        task = self.held[-1]

        def act() -> None:
            owned = tasks.owned(self.book, task.task_id, "w", task.attempt)
            if kind == "waiting":
                tasks.finish_claim(self.book, owned, again=False)
            elif kind == "broken":
                tasks.fail(self.book, owned, {"message": "replay failed"})
            else:
                self.complete(owned, kind)

        self.attempt(act)

    def complete(self, owned: Task, kind: str) -> None:
        terminal: dict[str, dict[str, Any]] = {
            "complete": {"type": "complete_workflow", "result": ENVELOPE},
            "fail": {"type": "fail_workflow", "message": "no"},
        }
        items = [side_effect(), *([terminal[kind]] if kind in terminal else [])]
        fields = Fields({})
        commands = parse_commands(fields, items, Grammar(1000))
        fields.check()
        apply_commands(self.book, owned, commands)
        if not apply_terminal(self.book, owned, commands):
            tasks.finish_claim(self.book, owned, again=True)

    @staticmethod
    def attempt(act: Any) -> None:
        with contextlib.suppress(Refusal):
            act()

    # --- what must always hold ---

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return [(event.event_type, json.loads(event.payload)) for event in self.book.events]

    @invariant()
    def history_has_no_gaps(self) -> None:
        numbers = [event.sequence for event in self.book.events]
        assert numbers == list(range(1, len(numbers) + 1))
        assert self.book.run.last_event == len(numbers)

    @invariant()
    def the_next_number_follows_the_largest_recorded_one(self) -> None:
        used = [payload["sequence"] for _, payload in self.events() if "sequence" in payload]
        assert self.book.run.next_sequence == max(used, default=0) + 1

    @invariant()
    def there_is_at_most_one_open_task_and_none_in_a_closed_run(self) -> None:
        open_tasks = [task for task in self.book.tasks.values() if task.is_open]
        assert len(open_tasks) <= (0 if self.book.run.is_closed else 1)

    @invariant()
    def an_open_call_has_a_task_that_leads_on(self) -> None:
        """A retry that is due some day and an attempt left behind must not be forgotten."""
        if not self.book.run.is_closed and list(self.book.open_executions()):
            assert self.book.open_task() is not None

    @invariant()
    def a_call_has_at_most_one_running_attempt_and_one_end(self) -> None:
        running = [attempt.execution_id for attempt in self.book.attempts.values() if attempt.status == "running"]
        assert len(running) == len(set(running))
        ends = [payload["activity_execution_id"] for kind, payload in self.events() if kind in CLOSING_EVENTS]
        assert len(ends) == len(set(ends))
        for execution in self.book.executions.values():
            if execution.status in ("completed", "failed", "timed_out"):
                assert execution.execution_id in ends

    @invariant()
    def nothing_but_a_stop_receipt_follows_the_end_of_a_run(self) -> None:
        kinds = [kind for kind, _ in self.events()]
        ends = [index for index, kind in enumerate(kinds) if kind in TERMINAL_EVENTS]
        assert len(ends) == int(self.book.run.is_closed)
        for index in ends:
            assert set(kinds[index + 1 :]) <= {"ActivityCancellationAcknowledged"}

    @invariant()
    def an_attempt_is_published_or_fenced_but_never_both(self) -> None:
        fenced = {p.get("activity_attempt_id") for k, p in self.events() if k == "ActivityCancelled"}
        published = {p["activity_attempt_id"] for k, p in self.events() if k == "ActivityCompleted"}
        assert not fenced & published

    @invariant()
    def a_lease_never_outlives_the_cleanup_deadline_it_was_given_under(self) -> None:
        request = self.book.run.cancellation
        for task in self.book.tasks.values():
            if request is not None and task.lease_expires_at is not None and task.status == "leased":
                longest = request.requested_at + timedelta(seconds=self.book.settings.lease_seconds)
                assert task.lease_expires_at <= max(longest, request.cleanup_deadline_at)


AnyWorkerAgainstTheRules.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyWorkerAgainstTheRules = AnyWorkerAgainstTheRules.TestCase


def test_the_fingerprint_covers_what_may_not_change_and_ignores_key_order() -> None:
    call = {"start_to_close_timeout": 5, "retry_policy": {"max_attempts": 2, "backoff_seconds": [1]}}
    turned = dict(reversed(list(describe_call(**call).items())))
    again = read_descriptor({"descriptor": turned}, limit=1000, refuse_as="invalid")
    assert descriptor(**call).fingerprint == again.fingerprint
    for change in (
        {"start_to_close_timeout": 6},
        {"activity_type": "other"},
        {"arguments": ENVELOPE["blob"]},
        {"cancellation_policy": "try_cancel"},
        {"heartbeat_timeout": 1},
    ):
        assert descriptor(**{**call, **change}).fingerprint != descriptor(**call).fingerprint


def test_an_envelope_and_its_bare_blob_are_the_same_call() -> None:
    assert descriptor(arguments=ENVELOPE).fingerprint == descriptor(arguments=ENVELOPE["blob"]).fingerprint


def test_large_arguments_are_recorded_once() -> None:
    book = new_book()
    task = book.open_task()
    assert task is not None
    task = tasks.lease(book, task, registration(), "1.20")
    blob = "A" * 20_000
    raw = {"descriptor": describe_call(arguments=blob)}
    prepare(
        book,
        task,
        registration(),
        owner="w",
        epoch=1,
        sequence=1,
        nonce="n",
        descriptor=read_descriptor(raw, limit=100_000, refuse_as="invalid"),
        reused_nonces=frozenset(),
    )
    scheduled, started = (json.loads(event.payload) for event in book.events[-2:])
    assert scheduled["activity"]["arguments"] == blob
    assert "arguments" not in started["activity"]


def test_closing_as_cancelled_needs_a_request() -> None:
    with pytest.raises(ValueError, match="no cancellation request"):
        runs.close_as_cancelled(new_book(), task_id=None)
