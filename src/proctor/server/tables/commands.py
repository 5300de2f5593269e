"""What the request ids of control-plane commands were used for."""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.server.tables.base import Table, encode


class CommandTable(Table):
    """Kept answers, so that a repeated request changes nothing."""

    def retained_command(self, namespace: str, workflow_id: str, request_id: str) -> tuple[str, str, Any] | None:
        """Read what a request id of a workflow was used for: (kind, fingerprint, answer body)."""
        found = self._sql(
            "SELECT kind, fingerprint, body FROM command WHERE namespace = ? AND workflow_id = ? AND request_id = ?",
            (namespace, workflow_id, request_id),
        ).fetchone()
        return None if found is None else (found[0], found[1], msgspec.json.decode(found[2]))

    def retain_command(
        self, namespace: str, workflow_id: str, request_id: str, *, kind: str, fingerprint: str, body: Any
    ) -> None:
        """Remember what a request id of a workflow was used for."""
        self._sql(
            "INSERT OR REPLACE INTO command VALUES (?, ?, ?, ?, ?, ?)",
            (namespace, workflow_id, request_id, kind, fingerprint, encode(body)),
        )
