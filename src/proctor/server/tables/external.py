"""Payloads that are kept outside of requests and history: their bytes, in the same file as everything else.

The same bytes are stored once in a namespace, so that an upload whose answer was lost can be repeated.
"""

from __future__ import annotations

from datetime import datetime

from proctor.core.external import Reference, reference_to
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table


class ExternalTable(Table):
    """Stored payloads by namespace and content."""

    def store_external(self, namespace: str, content: bytes, sha256: str, *, forget_at: datetime) -> Reference:
        """Keep bytes, at least until `forget_at`, and give the reference to them; known bytes keep theirs."""
        key = (namespace, sha256)
        due = to_micros(forget_at)
        self._sql("DELETE FROM external_payload WHERE forget_at <= ?", (to_micros(self.now),))
        self._sql(
            "UPDATE external_payload SET forget_at = ? WHERE namespace = ? AND sha256 = ? AND forget_at < ?",
            (due, *key, due),
        )
        self._sql(
            "INSERT OR IGNORE INTO external_payload (namespace, sha256, reference_id, forget_at, content)"
            " VALUES (?, ?, ?, ?, ?)",
            (*key, f"ep_{self.new_id()}", due, content),
        )
        found = self._sql("SELECT reference_id FROM external_payload WHERE namespace = ? AND sha256 = ?", key)
        return reference_to(found.fetchone()[0], content)

    def external(self, namespace: str, reference_id: str) -> bytes | None:
        """Read the bytes behind a reference id of a namespace; what was forgotten is not there."""
        found = self._sql(
            "SELECT content FROM external_payload WHERE namespace = ? AND reference_id = ?"
            " AND (forget_at IS NULL OR forget_at > ?)",
            (namespace, reference_id, to_micros(self.now)),
        ).fetchone()
        return None if found is None else found[0]

    def external_facts(self, namespace: str, reference_id: str) -> tuple[int, str] | None:
        """Read size and SHA-256 of the bytes behind a reference id of a namespace, without the bytes."""
        found = self._sql(
            "SELECT length(content), sha256 FROM external_payload WHERE namespace = ? AND reference_id = ?"
            " AND (forget_at IS NULL OR forget_at > ?)",
            (namespace, reference_id, to_micros(self.now)),
        ).fetchone()
        return None if found is None else (found[0], found[1])

    def claim_external(self, reference_ids: set[str]) -> None:
        """Keep payloads for good: a run refers to them."""
        self._sql_many(
            "UPDATE external_payload SET forget_at = NULL WHERE reference_id = ?",
            [(reference_id,) for reference_id in sorted(reference_ids)],
        )
