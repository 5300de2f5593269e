"""What a transaction made that quotas count, and how much of it a namespace has by now."""

from __future__ import annotations

from proctor.server.rules.quotas import RUN_RESOURCES, WORKER_RESOURCES, QuotaExhausted
from proctor.server.tables.base import Table

_COUNTS = {
    "workflow_instances": "SELECT COUNT(DISTINCT workflow_id) FROM run WHERE namespace = ?",
    "workflow_runs": "SELECT COUNT(*) FROM run WHERE namespace = ?",
    "open_workflow_runs": "SELECT COUNT(*) FROM run WHERE namespace = ? AND bucket = 'running'",
    "worker_registrations": "SELECT COUNT(*) FROM registration WHERE namespace = ?",
}


class QuotaTable(Table):
    """Questions about quotas, asked at the end of a request."""

    def check_quotas(self) -> None:
        """Raise QuotaExhausted when this transaction made more runs or workers than their namespace may have."""
        for namespaces, resources in ((self.started_in, RUN_RESOURCES), (self.registered_in, WORKER_RESOURCES)):
            for namespace in namespaces:
                for resource, bound in self.settings.quotas.bounds(resources):
                    (value,) = self._sql(_COUNTS[resource], (namespace,)).fetchone()
                    if value > bound:
                        raise QuotaExhausted(namespace, resource, value, bound)
