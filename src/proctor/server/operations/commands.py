"""Control-plane commands with a request id: signals (control-plane.md §6).

The answer to a request id is kept with what was asked, so that a repeated request changes nothing and a different one
under the same id is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from proctor.core.external import Payload
from proctor.server.operations.calls import Call, saving
from proctor.server.operations.workflows import find_run
from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import Fields
from proctor.server.rules.receivers import receive_signal
from proctor.server.rules.refusal import Answer, conflict, not_found
from proctor.server.rules.rows import Run
from proctor.server.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Intent:
    """What a command asks for, beside whom it asks."""

    kind: str
    name: str
    request_id: str | None
    arguments: Payload | None
    run_id: str | None

    @property
    def fingerprint(self) -> str:
        """Give what two requests of the same intent share."""
        parts = [self.kind, self.name, self.arguments, self.run_id]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def read_intent(tx: Transaction, call: Call, kind: str, fields: Fields) -> Intent:
    """Read the parts that all commands share; mistakes are noted in `fields`."""
    request_id = fields.optional_text("request_id")
    if request_id is not None and len(request_id.encode()) > 255:
        fields.wrong("request_id", "must have at most 255 bytes")
    return Intent(
        kind=kind,
        name=read_name(call, kind, fields),
        request_id=request_id,
        arguments=fields.payload("input", limit=tx.settings.max_payload_bytes),
        run_id=call.path.get("run_id"),
    )


def read_name(call: Call, kind: str, fields: Fields) -> str:
    """Read the name of a receiver from the path; it may hold slashes."""
    name = call.path["name"]
    if not name.strip():
        fields.wrong(f"{kind}_name", "must not be blank")
    return name


def repeated(tx: Transaction, call: Call, intent: Intent) -> dict[str, Any] | None:
    """Give the kept answer to an identical earlier request; refuse another intent under the same request id."""
    if intent.request_id is None:
        return None
    known = tx.retained_command(call.namespace, call.path["workflow_id"], intent.request_id)
    if known is None:
        return None
    kind, fingerprint, body = known
    if fingerprint != intent.fingerprint:
        raise conflict(
            "request_id_conflict",
            f"the request id {intent.request_id} was used for another {kind}",
            request_id=intent.request_id,
            retained_command_id=body.get("command_id"),
            retained_command_type=kind,
            retained_outcome=body.get("outcome"),
        )
    return {**body, "retained": True, "intent_verified": True}


def retain(tx: Transaction, call: Call, intent: Intent, body: Mapping[str, Any]) -> None:
    """Keep the answer to a request id."""
    if intent.request_id is not None:
        tx.retain_command(
            call.namespace,
            call.path["workflow_id"],
            intent.request_id,
            kind=intent.kind,
            fingerprint=intent.fingerprint,
            body=dict(body),
        )


def open_book(tx: Transaction, call: Call) -> RunBook:
    """Give the book of the current run, or refuse an older or a closed one."""
    run = find_run(tx, call)
    current = tx.current_run(call.namespace, run.workflow_id)
    if current is not None and current.run_id != run.run_id:
        raise conflict(
            "historical_run_command_rejected",
            f"run {run.run_id} is not the current run of {run.workflow_id}",
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            current_run_id=current.run_id,
        )
    if run.is_closed:
        raise conflict(
            "run_not_active",
            f"the run is closed ({run.status})",
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            run_status=run.status,
        )
    return tx.book(run)


def declares(tx: Transaction, run: Run, receivers: str, name: str) -> bool | None:
    """Say whether a worker of this workflow type declares a receiver; None when none declares any contract."""
    contracts = [
        contract
        for registration in tx.registrations(run.namespace)
        if isinstance(contract := registration.command_contracts.get(run.workflow_type), dict)
    ]
    if not contracts:
        return None
    return any(isinstance(declared := contract.get(receivers), list) and name in declared for contract in contracts)


def signal(tx: Transaction, call: Call) -> Answer:
    """Record a signal for the current run."""
    fields = Fields(call.body)
    intent = read_intent(tx, call, "signal", fields)
    fields.check()
    find_run(tx, call)
    known = repeated(tx, call, intent)
    if known is not None:
        return Answer(known, status=202)
    book = open_book(tx, call)
    if declares(tx, book.run, "signals", intent.name) is False:
        raise not_found(
            "unknown_signal",
            f"the workflow type {book.run.workflow_type} declares no signal {intent.name!r}",
            workflow_id=book.run.workflow_id,
            signal_name=intent.name,
        )
    command_id = book.new_id()
    with saving(tx, book):
        receive_signal(book, name=intent.name, arguments=intent.arguments, command_id=command_id)
    body = {
        "workflow_id": book.run.workflow_id,
        "run_id": book.run.run_id,
        "signal_name": intent.name,
        "outcome": "signal_received",
        "command_status": "accepted",
        "command_id": command_id,
        "request_id": intent.request_id,
        "run_status": book.run.status,
        "reason": None,
    }
    retain(tx, call, intent, body)
    return Answer(body | {"retained": False, "intent_verified": True}, status=202)
