"""Questions to workflow code that somebody waits for: what a query and the validation of an update have in common.

A question changes nothing durable and lives as long as its asker waits. It has one budget, fixed when it is admitted:
every lease ends with it and none is renewed. A lease whose holder has gone makes the question pending again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from proctor.core.external import Payload
from proctor.server.rules.rows import Run


class Question(Struct, frozen=True, kw_only=True):
    """One question: pending, leased, or settled in one of the ways of its kind. `attempt` counts its leases."""

    question_id: str
    namespace: str
    run_id: str
    workflow_id: str
    workflow_type: str
    task_queue: str
    name: str
    arguments: Payload | None
    admitted_at: datetime
    deadline_at: datetime
    status: str = "pending"
    attempt: int = 0
    lease_owner: str | None = None
    poll_request_id: str | None = None
    failure: dict[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Say whether an answer may still come."""
        return self.status in {"pending", "leased"}


Q = TypeVar("Q", bound=Question)


def ask(
    kind: type[Q],
    run: Run,
    *,
    question_id: str,
    name: str,
    arguments: Payload | None,
    now: datetime,
    seconds: float,
    **own: Any,
) -> Q:
    """Make a question to the code of a run that is asked now, with so many seconds; `own` are its kind's fields."""
    return kind(
        question_id=question_id,
        namespace=run.namespace,
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        workflow_type=run.workflow_type,
        task_queue=run.task_queue,
        name=name,
        arguments=arguments,
        admitted_at=now,
        deadline_at=now + timedelta(seconds=seconds),
        **own,
    )


def lease(question: Q, worker_id: str, poll_request_id: str | None) -> Q:
    """Give a pending question to a worker, for what is left of its budget."""
    return msgspec.structs.replace(
        question,
        status="leased",
        attempt=question.attempt + 1,
        lease_owner=worker_id,
        poll_request_id=poll_request_id,
    )


def release(question: Q) -> Q:
    """Take a question back from a worker that has gone."""
    return msgspec.structs.replace(question, status="pending", lease_owner=None, poll_request_id=None)
