"""Sticky execution: which worker may still hold a run's history, as a hint that is never needed (sticky.md §5).

A worker claims in a completion that it kept the history; the claim is checked against its lease and its registration
and becomes the affinity of the run and of the run's next task. Nobody is preferred or held back for it: it only tells
the worker that leases a task whether looking into its cache can help.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from proctor.server.rules.fields import Fields
from proctor.server.rules.portable import rejected, require
from proctor.server.rules.registration import build_of
from proctor.server.rules.rows import Affinity, Registration, Run, Task

CAPABILITY = "sticky_execution"
HIT_EXPECTED, FORCED, COLD = "sticky_hit_expected", "forced_cold_replay", "cold_replay"
COUNTERS = ("hit", "miss", "eviction", "forced_cold_replay")
LONGEST_TTL = 3_600


class CacheClaim(Struct, frozen=True, kw_only=True):
    """What a worker says of its cache when it completes a task."""

    worker_id: str
    workflow_id: str
    run_id: str
    build_id: str
    ttl_seconds: int
    metrics: dict[str, int] | None


def read_claim(fields: Fields) -> CacheClaim | None:
    """Read the claim of a completion; mistakes are noted in `fields` under ``sticky_cache.{field}``."""
    body = fields.optional_object("sticky_cache")
    if body is None:
        return None
    reader = Fields(body, "sticky_cache.", fields.errors)
    metrics = reader.optional_object("metrics")
    counters = Fields(metrics or {}, "sticky_cache.metrics.", fields.errors)
    counted = {name: counters.optional_integer(name, low=0) for name in COUNTERS}
    return CacheClaim(
        worker_id=reader.text("worker_id"),
        workflow_id=reader.text("workflow_id"),
        run_id=reader.text("run_id"),
        build_id=reader.text("build_id"),
        ttl_seconds=reader.integer("ttl_seconds", low=1, high=LONGEST_TTL),
        metrics=None if metrics is None else {name: count for name, count in counted.items() if count is not None},
    )


def check_claim(claim: CacheClaim, run: Run, task: Task, registration: Registration | None, minor: int) -> None:
    """Refuse a claim that its worker may not make, or that names anything but its lease, its run and its build."""
    require(CAPABILITY, minor=minor, task=task, registration=registration)
    build = None if registration is None else effective_build(registration)
    owner = None if task.claim is None else task.claim.worker_id
    if build is None or (claim.worker_id, claim.run_id, claim.workflow_id, claim.build_id) != (
        owner,
        task.run_id,
        run.workflow_id,
        build,
    ):
        raise rejected(
            "sticky_cache_identity_mismatch",
            "the sticky cache claim does not name the lease owner, the run, the workflow and the build of this task",
            "claim with the registered worker id, the ids of the task, and the registered build_id or sdk_version",
            capability=CAPABILITY,
            minor=minor,
            task=task,
        )


def effective_build(registration: Registration) -> str | None:
    """Give what identifies the code of a worker in a cache key: its build id, else the version of its SDK."""
    return build_of(registration) or registration.sdk_version


def affinity(claim: CacheClaim, now: datetime) -> Affinity:
    """Give the affinity that an accepted claim makes."""
    return Affinity(worker_id=claim.worker_id, until=now + timedelta(seconds=claim.ttl_seconds))


def with_metrics(registration: Registration, claim: CacheClaim) -> Registration:
    """Give the registration with the counters of the latest claim, as the control plane shows them."""
    if claim.metrics is None:
        return registration
    metrics: dict[str, Any] = {**(registration.process_metrics or {}), "sticky_cache": claim.metrics}
    return msgspec.structs.replace(registration, process_metrics=metrics)


def inherited(run: Run, now: datetime) -> Affinity | None:
    """Give the affinity that a new task of a run starts with: the run's, while it lasts."""
    return run.affinity if run.affinity is not None and run.affinity.until > now else None


def replay_mode(task: Task, worker_id: str, now: datetime) -> str:
    """Choose what the worker that leases a task is told about its cache."""
    if task.forced_cold_replay:
        return FORCED
    if task.affinity is None:
        return COLD
    is_holder = task.affinity.worker_id == worker_id and task.affinity.until > now
    return HIT_EXPECTED if is_holder else FORCED
