"""Load on a server, a ledger of what it acknowledged, and the check that a database file holds all of it, whole.

One lane is a worker with a queue of its own which starts runs, signals them, runs a prepared local call in each and
completes them. Owns no server and no way to end one.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from proctor.server.database import open_database
from proctor.server.rules.rows import TERMINAL_STATUSES
from server.wire import Claim, Reply, Worker, describe_call, side_effect

_ENDS = frozenset({"WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTerminated"})


class Gone(Exception):
    """The server did not answer; what was asked may have happened or not."""


class Face(Protocol):
    """What a lane needs of a server."""

    async def worker(self, path: str, body: Any = None, *, version: str = "1.20", method: str = "POST") -> Reply:
        """Make a request of the worker plane."""
        ...

    async def control(self, method: str, path: str, body: Any = None) -> Reply:
        """Make a request of the control plane."""
        ...


@dataclass
class Ledger:
    """What was acknowledged so far, each thing by what the file must hold of it."""

    runs: dict[str, str] = field(default_factory=dict)
    """run id -> workflow id."""
    commands: set[str] = field(default_factory=set)
    attempts: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    registrations: dict[str, str] = field(default_factory=dict)
    """worker id -> token of the newest acknowledged registration."""

    def __len__(self) -> int:
        return len(self.runs) + len(self.commands) + len(self.attempts) + len(self.events) + len(self.completed)

    def copy(self) -> Ledger:
        """Give the ledger as it is now."""
        return Ledger(
            dict(self.runs),
            set(self.commands),
            set(self.attempts),
            set(self.events),
            set(self.completed),
            dict(self.registrations),
        )


async def work(face: Face, ledger: Ledger, lane: str, *, rounds: int = 1_000_000) -> None:
    """Work as fast as the server answers; raises Gone when it is no more."""
    worker = Worker(face, f"w-{lane}")  # type: ignore[arg-type]
    # A registration that may be replaced at any moment is no fact.
    ledger.registrations.pop(worker.worker_id, None)
    registered = await worker.register(task_queue=f"q-{lane}")
    ledger.registrations[worker.worker_id] = registered["registration_token"]
    for number in range(rounds):
        name = f"{lane}-{registered['registration_token'][:8]}-{number}"
        body = {"workflow_id": name, "workflow_type": "t", "task_queue": f"q-{lane}"}
        started = (await face.control("POST", "/workflows", body)).ok(201)
        ledger.runs[started["run_id"]] = name
        reply = await face.control("POST", f"/workflows/{name}/signal/go", {"request_id": f"ask-{name}"})
        ledger.commands.add(reply.ok(202)["command_id"])
        task = (await worker.try_poll(task_queue=f"q-{lane}")).ok()["task"]
        if task is not None:
            await _turn(Claim(worker, task), ledger)


async def _turn(claim: Claim, ledger: Ledger) -> None:
    sequence = 1
    recorded = claim.task["history_events"]
    if any(event["event_type"] == "ActivityStarted" for event in recorded):
        sequence = 2  # its worker died in the middle; the run is closed without a second attempt
    else:
        nonce = f"{claim.task['task_id']}-{claim.task['workflow_task_attempt']}"
        prepared = await claim.post(
            "/local-activities/prepare", sequence=1, worker_attempt_id=nonce, descriptor=describe_call()
        )
        attempt = prepared.ok()["activity_attempt_id"]
        ledger.attempts.add(attempt)
        report = {"outcome": "failed", "message": "no"}
        outcome = await claim.post(f"/local-activities/{attempt}/outcome", report=report)
        ledger.events.add(outcome.ok()["event_id"])
    effects = [side_effect(), side_effect()]
    finish = {"type": "complete_workflow", "result": {"codec": "avro", "blob": "wwHioz3/VYAiNwQA"}}
    done = await claim.complete(*effects, finish)
    if sequence == 1:
        done.ok()
    if done.status == 200:
        ledger.completed.add(claim.task["run_id"])


def check(path: Path, ledger: Ledger) -> None:
    """Open the file as a server would and fail unless it holds everything acknowledged and no half transaction."""
    with open_database(path) as database:
        _check(database.connection, ledger)


def _check(sql: sqlite3.Connection, ledger: Ledger) -> None:
    assert sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    runs = {run_id: json.loads(body) for run_id, body in sql.execute("SELECT run_id, body FROM run")}
    assert {run_id: runs.get(run_id, {}).get("workflow_id") for run_id in ledger.runs} == ledger.runs
    events: dict[str, list[Any]] = {run_id: [] for run_id in runs}
    rows = sql.execute(
        "SELECT run_id, id, sequence, event_type, command_id, payload FROM event ORDER BY run_id, sequence"
    )
    for run_id, *event in rows:
        events[run_id].append(event)  # a KeyError here is an event without its run
    open_tasks = dict(sql.execute("SELECT run_id, COUNT(*) FROM task WHERE status IN ('ready','leased') GROUP BY 1"))
    started, ids, signalled = set(), set(), set()
    for run_id, run in runs.items():
        _check_run(run, events[run_id], open_tasks.get(run_id, 0))
        for event_id, _, kind, command_id, payload in events[run_id]:
            ids.add(event_id)
            if kind == "ActivityStarted":
                started.add(json.loads(payload)["activity_attempt_id"])
            elif kind == "SignalReceived":
                signalled.add(command_id)
    # What one transaction wrote into two tables is in both or in neither.
    assert started == {attempt for (attempt,) in sql.execute("SELECT attempt_id FROM attempt")}
    kept = {json.loads(body)["command_id"] for (body,) in sql.execute("SELECT body FROM command")}
    assert kept == signalled
    assert {run_id for (run_id,) in sql.execute("SELECT run_id FROM run_payload WHERE output IS NOT NULL")} == {
        run_id for run_id, run in runs.items() if run["status"] == "completed"
    }
    assert ledger.commands <= signalled
    assert ledger.attempts <= started
    assert ledger.events <= ids
    assert all(runs[run_id]["status"] == "completed" for run_id in ledger.completed)
    held = {
        worker_id: json.loads(body)["token"]
        for worker_id, body in sql.execute("SELECT worker_id, body FROM registration")
    }
    tokens = {token for (token,) in sql.execute("SELECT token FROM incarnation")}
    assert {worker_id: held.get(worker_id) for worker_id in ledger.registrations} == ledger.registrations
    assert set(held.values()) <= tokens


def _check_run(run: dict[str, Any], events: list[Any], open_tasks: int) -> None:
    assert [sequence for _, sequence, *_ in events] == list(range(1, run.get("last_event", 0) + 1)), run
    kinds = Counter(kind for _, _, kind, *_ in events)
    assert [kind for _, _, kind, *_ in events[:2]] == ["StartAccepted", "WorkflowStarted"]
    closed = run["status"] in TERMINAL_STATUSES
    assert sum(kinds[kind] for kind in _ENDS) == closed
    # Both effects were committed with the end of the run, and its task was closed with it.
    assert kinds["SideEffectRecorded"] == 2 * closed
    assert open_tasks == (not closed), (run, kinds)
