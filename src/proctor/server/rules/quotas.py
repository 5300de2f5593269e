"""Quotas of namespaces: how many workflows, runs, open runs and workers each may have.

A request that would leave more is refused as a whole, whatever else it did; existing things are never taken away, and
what needs no more room goes on. Owns the names, the numbers and the refusal, not the counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from proctor.server.rules.refusal import Refusal

_RETRY_SECONDS = 60

RUN_RESOURCES = ("workflow_instances", "workflow_runs", "open_workflow_runs")
WORKER_RESOURCES = ("worker_registrations",)
RESOURCES = (*RUN_RESOURCES, *WORKER_RESOURCES)

# What may free itself: runs end and workers leave, but nothing recorded is ever deleted.
_RETRYABLE = frozenset({"open_workflow_runs", "worker_registrations"})


@dataclass(frozen=True, slots=True)
class Quotas:
    """The numbers, the same for each namespace; None sets no bound."""

    workflow_instances: int | None = None
    workflow_runs: int | None = None
    open_workflow_runs: int | None = None
    worker_registrations: int | None = None

    def bounds(self, resources: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Give the resources that are bounded, and their bounds."""
        for resource in resources:
            bound = getattr(self, resource)
            if bound is not None:
                yield resource, bound


UNBOUNDED = Quotas()


class QuotaExhausted(Exception):
    """A quota would be passed; everything the request did is undone, and `refusal` is its answer."""

    def __init__(self, namespace: str, resource: str, value: int, bound: int) -> None:
        text = f"namespace {namespace} would have {value} {resource.replace('_', ' ')}, and {bound} are allowed"
        super().__init__(text)
        retryable = resource in _RETRYABLE
        facts = {
            "resource": resource,
            "current_value": value,
            "configured_limit": bound,
            "retryable": retryable,
            **({"retry_after_seconds": _RETRY_SECONDS} if retryable else {}),
        }
        self.refusal = Refusal(429, f"namespace_{resource}_exhausted", f"{text}; nothing was changed", facts)
