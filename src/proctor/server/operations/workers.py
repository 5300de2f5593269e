"""Registering, heartbeats and deregistering of workers (worker.md §1), and what each does to the leases they hold.

How operators see the workers is in `fleet`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import msgspec

from proctor.server.operations.calls import Call, saving
from proctor.server.rules import questions
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.queued import ending
from proctor.server.rules.refusal import Answer, conflict, invalid, not_found
from proctor.server.rules.registration import check_definitions, is_stale, read_registration
from proctor.server.rules.rows import Incarnation, Registration
from proctor.server.rules.steps import ActivityCall
from proctor.server.rules.tasks import release
from proctor.server.rules.validations import UpdateValidation
from proctor.server.transaction import Transaction

RECEIPT_SCHEMA = "durable-workflow.v2.worker-deregistration.v1"

_TOKEN = re.compile(r"[0-9a-f]{32}")


def register(tx: Transaction, call: Call) -> Answer:
    """Store a registration as a new incarnation; an older one is superseded and its leases are freed."""
    new = read_registration(
        call.body,
        namespace=call.namespace,
        minor=call.minor,
        token=tx.ids.token(),
        fresh_worker_id=f"worker-{tx.new_id().lower()}",
        now=tx.now,
        settings=tx.settings,
    )
    old = tx.registration(call.namespace, new.worker_id)
    if old is not None:
        check_definitions(new, None if _is_stale(tx, old) else old)
        _supersede(tx, old)
    _free_leases(tx, call.namespace, new.worker_id)
    if old is None:
        tx.registered_in.add(new.namespace)
    tx.save_registration(new)
    tx.save_incarnation(Incarnation(token=new.token, namespace=new.namespace, worker_id=new.worker_id))
    body = {
        "worker_id": new.worker_id,
        "registered": True,
        "namespace": new.namespace,
        "task_queue": new.task_queue,
        "runtime": new.runtime,
        "build_id": new.build_id,
        "capabilities": list(new.capabilities),
        "capability_manifest": new.manifest,
        "status": "active",
        "heartbeat_interval_seconds": new.heartbeat_interval_seconds,
        "registration_token": new.token,
    }
    return Answer(body, status=201)


def _is_stale(tx: Transaction, registration: Registration) -> bool:
    return is_stale(registration, now=tx.now, stale_seconds=tx.settings.worker_stale_seconds)


def active_registrations(tx: Transaction, namespace: str) -> list[Registration]:
    """Give the registrations of a namespace whose workers have been heard of lately."""
    return [row for row in tx.registrations(namespace) if not _is_stale(tx, row)]


def _supersede(tx: Transaction, old: Registration) -> None:
    known = tx.incarnation(old.token)
    if known is not None:
        retention = timedelta(seconds=tx.settings.receipt_retention_seconds)
        tx.save_incarnation(msgspec.structs.replace(known, state="superseded", forget_at=tx.now + retention))


def _free_leases(tx: Transaction, namespace: str, worker_id: str, *, work_has_stopped: bool = False) -> int:
    """Make every workflow task of this worker pollable again, and give their number.

    The attempts under these tasks keep their leases unless the worker said that its work has stopped: a process that
    registers again under an old id proves nothing about the handlers of its predecessor, and `recover` must wait for
    them to be out of authority.
    """
    freed = 0
    for task in tx.leased_by(namespace, worker_id):
        book = tx.book_of_task(namespace, task.task_id)
        if book is None:
            continue
        with saving(tx, book):
            enforce_deadlines(book)
            held = book.tasks[task.task_id]
            if held.status != "leased":
                continue
            release(book, held, forced_cold_replay=True)
            freed += 1
            for attempt in list(book.attempts.values()):
                if work_has_stopped and attempt.status == "running" and attempt.task_id == task.task_id:
                    book.put(msgspec.structs.replace(attempt, lease_expires_at=tx.now))
    _expire_activities(tx, namespace, worker_id)
    for query in tx.questions_leased_by(QueryTask, namespace, worker_id):
        tx.save_question(questions.release(query))
    for validation in tx.questions_leased_by(UpdateValidation, namespace, worker_id):
        tx.save_question(questions.release(validation))
    return freed


def _expire_activities(tx: Transaction, namespace: str, worker_id: str) -> None:
    """End the leases of the queued activities that a gone worker ran."""
    for run_id, sequence in tx.activities_of(namespace, worker_id):
        run = tx.run(run_id)
        if run is None:
            continue
        book = tx.book(run, sequence=sequence)
        with saving(tx, book):
            enforce_deadlines(book)
            call = book.steps.get(sequence)
            if isinstance(call, ActivityCall) and call.attempt.lease_owner == worker_id and call.status == "running":
                lapsed = msgspec.structs.replace(call.attempt, lease_expires_at=tx.now)
                ending.expire(book, msgspec.structs.replace(call, attempt=lapsed))


def heartbeat(tx: Transaction, call: Call) -> Answer:
    """Note that a worker is alive, and what it reports about itself."""
    fields = Fields(call.body)
    worker_id = fields.text("worker_id")
    slots = fields.optional_object("task_slots")
    metrics = fields.optional_object("process_metrics")
    interval = fields.optional_integer("heartbeat_interval_seconds", low=1, high=3_600)
    fields.check()
    known = tx.registration(call.namespace, worker_id)
    if known is None:
        raise not_found(
            "worker_not_registered", f"worker {worker_id} is not registered; register it again", worker_id=worker_id
        )
    sender, holder = _identity(metrics), _identity(known.process_metrics)
    if sender is not None and holder is not None and sender != holder:
        raise conflict(
            "worker_registration_superseded",
            f"worker {worker_id} was registered again by another process",
            worker_id=worker_id,
        )
    if metrics is not None and "sticky_cache" in (known.process_metrics or {}):
        # These counters come with completions; a heartbeat that does not know them takes nothing back.
        metrics = {"sticky_cache": (known.process_metrics or {})["sticky_cache"], **metrics}
    renewed = msgspec.structs.replace(
        known,
        last_heartbeat_at=tx.now,
        task_slots=slots if slots is not None else known.task_slots,
        process_metrics=metrics if metrics is not None else known.process_metrics,
        heartbeat_interval_seconds=interval or known.heartbeat_interval_seconds,
    )
    tx.save_registration(renewed)
    return Answer(
        {
            "worker_id": worker_id,
            "acknowledged": True,
            "heartbeat_interval_seconds": renewed.heartbeat_interval_seconds,
            "stale_after_seconds": tx.settings.worker_stale_seconds,
            "retention": {"receipt_retention_seconds": tx.settings.receipt_retention_seconds},
        }
    )


def _identity(metrics: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """Give what tells one process from another, when all of it is known."""
    parts = tuple((metrics or {}).get(name) for name in ("host", "process_started_at", "process_id"))
    return None if None in parts else parts


def deregister_fenced(tx: Transaction, call: Call) -> Answer:
    """End exactly the incarnation that a token names; the same token gives the same receipt again."""
    worker_id, token = call.path["worker_id"], call.body.get("registration_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise invalid({"registration_token": ["must be 32 lower-case hex digits"]})
    identity = {"worker_id": worker_id, "registration_token": token, "retryable": False}
    known = tx.incarnation(token)
    if known is None or (known.worker_id, known.namespace) != (worker_id, call.namespace):
        raise not_found(
            "worker_registration_token_not_found", f"worker {worker_id} has no such registration", **identity
        )
    if known.state == "superseded":
        raise conflict(
            "worker_registration_lost_authority",
            f"worker {worker_id} was registered again; this registration has nothing left to end",
            **identity,
        )
    if known.state == "active":
        freed = _free_leases(tx, call.namespace, worker_id, work_has_stopped=True)
        tx.delete_registration(call.namespace, worker_id)
        known = msgspec.structs.replace(
            known,
            state="deregistered",
            recovered_workflow_task_count=freed,
            forget_at=tx.now + timedelta(seconds=tx.settings.receipt_retention_seconds),
        )
        tx.save_incarnation(known)
    return Answer(
        {
            "worker_id": worker_id,
            "registration_token": token,
            "outcome": "deregistered",
            "recovered_workflow_task_count": known.recovered_workflow_task_count,
        }
    )


def deregister(tx: Transaction, call: Call) -> Answer:
    """End whatever registration the worker id has (the form without a fence)."""
    worker_id = call.path["worker_id"]
    freed = _remove(tx, call.namespace, worker_id, work_has_stopped=True)
    return Answer({"worker_id": worker_id, "outcome": "deregistered", "recovered_workflow_task_count": freed})


def remove(tx: Transaction, call: Call) -> Answer:
    """Take a worker off the roster for an operator, who cannot know whether its work has stopped."""
    worker_id = call.path["worker_id"]
    _remove(tx, call.namespace, worker_id, work_has_stopped=False)
    return Answer({"worker_id": worker_id, "outcome": "deregistered"})


def _remove(tx: Transaction, namespace: str, worker_id: str, *, work_has_stopped: bool) -> int:
    known = tx.registration(namespace, worker_id)
    if known is None:
        raise not_found("worker_not_found", f"worker {worker_id} is not registered", worker_id=worker_id)
    _supersede(tx, known)
    freed = _free_leases(tx, namespace, worker_id, work_has_stopped=work_has_stopped)
    tx.delete_registration(namespace, worker_id)
    return freed
