"""Rows of runs and their payloads."""

from __future__ import annotations

import msgspec

from proctor.core.external import External, Payload
from proctor.server.rules.rows import Run
from proctor.server.rules.runs import status_bucket
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table, decode, encode

_decode_external = msgspec.json.Decoder(External).decode


def payload_column(payload: Payload | None) -> str | None:
    """Give a payload as a column holds it: a blob as it is, a reference as JSON, which no blob can be."""
    return encode(payload).decode() if isinstance(payload, External) else payload


def _payload(column: str | None) -> Payload | None:
    return _decode_external(column) if column is not None and column.startswith("{") else column


class RunTable(Table):
    """Runs: read by id, by workflow and by what a listing asks for."""

    def run(self, run_id: str) -> Run | None:
        """Read one run."""
        found = self._sql("SELECT body FROM run WHERE run_id = ?", (run_id,)).fetchone()
        return None if found is None else decode(Run, found[0])

    def current_run(self, namespace: str, workflow_id: str) -> Run | None:
        """Read the newest run of a workflow."""
        found = self._sql(
            "SELECT body FROM run WHERE namespace = ? AND workflow_id = ? ORDER BY run_number DESC LIMIT 1",
            (namespace, workflow_id),
        ).fetchone()
        return None if found is None else decode(Run, found[0])

    def runs_of(self, namespace: str, workflow_id: str) -> list[Run]:
        """Read every run of a workflow, oldest first."""
        found = self._sql(
            "SELECT body FROM run WHERE namespace = ? AND workflow_id = ? ORDER BY run_number",
            (namespace, workflow_id),
        )
        return [decode(Run, body) for (body,) in found]

    def list_runs(
        self, namespace: str, *, workflow_type: str | None, bucket: str | None, before: str | None, limit: int
    ) -> list[Run]:
        """Read the newest run of each workflow of a namespace, newest first, below the run id `before`."""
        newest = (
            "NOT EXISTS (SELECT 1 FROM run later WHERE later.namespace = run.namespace"
            " AND later.workflow_id = run.workflow_id AND later.run_number > run.run_number)"
        )
        clauses, values = ["namespace = ?", newest], [namespace]
        for clause, value in (("workflow_type = ?", workflow_type), ("bucket = ?", bucket), ("run_id < ?", before)):
            if value is not None:
                clauses.append(clause)
                values.append(value)
        query = f"SELECT body FROM run WHERE {' AND '.join(clauses)} ORDER BY run_id DESC LIMIT ?"  # noqa: S608
        return [decode(Run, body) for (body,) in self._sql(query, (*values, limit))]

    def payloads(self, run_id: str) -> tuple[Payload | None, Payload | None]:
        """Read the input and the output of a run."""
        found = self._sql("SELECT input, output FROM run_payload WHERE run_id = ?", (run_id,)).fetchone()
        return (None, None) if found is None else (_payload(found[0]), _payload(found[1]))

    def add_payload(self, run_id: str, payload: Payload | None) -> None:
        """Store the input of a new run."""
        self._sql("INSERT INTO run_payload (run_id, input) VALUES (?, ?)", (run_id, payload_column(payload)))

    def save_run(self, run: Run) -> None:
        """Write a run."""
        due = None
        if not run.is_closed:
            cleanup = None if run.cancellation is None else run.cancellation.cleanup_deadline_at
            dues = [run.execution_deadline_at, run.run_deadline_at, cleanup]
            due = min((instant for instant in dues if instant is not None), default=None)
            self.consequences.due(due)
        self._sql(
            "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.run_id,
                run.namespace,
                run.workflow_id,
                run.run_number,
                run.workflow_type,
                status_bucket(run.status),
                None if due is None else to_micros(due),
                encode(run),
            ),
        )
