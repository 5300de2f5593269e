"""Worker sessions on the wire: create, renew and close for workers, list and show for operators (sessions.md §3)."""

from __future__ import annotations

from proctor.server.operations.calls import Call
from proctor.server.operations.session_leases import refreshed, shown, with_session
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Answer, Refusal, conflict, not_found
from proctor.server.rules.sessions import leases, views
from proctor.server.rules.sessions.options import read_positive, read_request
from proctor.server.schema import to_micros
from proctor.server.transaction import Transaction


def create(tx: Transaction, call: Call) -> Answer:
    """Give a registered worker a session: a new one, the one it holds, or one whose holder was lost."""
    leases.check_floor(call.minor, tx.settings.protocol)
    fields = Fields(call.body)
    worker_id = fields.text("worker_id")
    options = read_request(fields)
    fields.check()
    worker = tx.registration(call.namespace, worker_id)
    if worker is None:
        text = f"worker {worker_id} is not registered; register it before creating a session"
        raise Refusal(412, "worker_not_registered", text, {"worker_id": worker_id})
    options = options.filled(worker.task_queue)
    if options.queue != worker.task_queue:
        raise conflict(
            "session_queue_mismatch",
            f"worker {worker_id} is registered for queue {worker.task_queue}, not {options.queue}",
            worker_id=worker_id,
            registered_task_queue=worker.task_queue,
            requested_session_queue=options.queue,
        )
    if not options.session_id:
        raise leases.refused("invalid_worker_session", "the session id must not be blank", status=422)
    known = tx.worker_session(call.namespace, options.session_id)
    known = None if known is None else refreshed(tx, known)
    held = tx.held_sessions(call.namespace, worker_id)
    try:
        outcome, session = leases.admit(known, options, worker, now=tx.now, held=held)
    except Refusal as refusal:
        raise with_session(tx, refusal, known) from None
    tx.save_worker_session(session, worker)
    status = 201 if outcome == "created" else 200
    return Answer(views.operation(outcome, status, shown(tx, session)), status=status)


def heartbeat(tx: Transaction, call: Call) -> Answer:
    """Renew the lease of the holder."""
    leases.check_floor(call.minor, tx.settings.protocol)
    fields = Fields(call.body)
    worker_id = fields.text("worker_id")
    seconds = read_positive(fields, "lease_seconds", digits=True)
    fields.check()
    session_id = call.path["session_id"]
    known = tx.worker_session(call.namespace, session_id)
    known = None if known is None else refreshed(tx, known)
    try:
        session = leases.renew(known, session_id, worker_id, now=tx.now, seconds=seconds)
    except Refusal as refusal:
        raise with_session(tx, refusal, known) from None
    tx.save_worker_session(session, tx.registration(call.namespace, worker_id))
    return Answer(views.operation("heartbeat_recorded", 200, shown(tx, session)))


def close(tx: Transaction, call: Call) -> Answer:
    """End a session for good; its name is never given out again."""
    leases.check_floor(call.minor, tx.settings.protocol)
    fields = Fields(call.body)
    worker_id = fields.text("worker_id")
    fields.check()
    session_id = call.path["session_id"]
    known = tx.worker_session(call.namespace, session_id)
    known = None if known is None else refreshed(tx, known)
    try:
        outcome, session = leases.close(known, session_id, worker_id, now=tx.now)
    except Refusal as refusal:
        raise with_session(tx, refusal, known) from None
    if session is not known:
        tx.save_worker_session(session, None)
    return Answer(views.operation(outcome, 200, shown(tx, session)))


def list_sessions(tx: Transaction, call: Call) -> Answer:
    """List every session of the namespace, the last changed first, with their number by status."""
    found = [refreshed(tx, session) for session in tx.worker_sessions(call.namespace)]
    found.sort(key=lambda session: (-to_micros(session.updated_at), session.session_id))
    return Answer(
        {
            "namespace": call.namespace,
            "metrics": views.metrics(found),
            "sessions": [shown(tx, session) for session in found],
        }
    )


def show_session(tx: Transaction, call: Call) -> Answer:
    """Show one session."""
    session_id = call.path["session_id"]
    known = tx.worker_session(call.namespace, session_id)
    if known is None:
        raise not_found("worker_session_not_found", f"there is no worker session {session_id}", session_id=session_id)
    return Answer({"namespace": call.namespace, "session": shown(tx, refreshed(tx, known))})
