"""The durable facts of a worker session, and the options that name one. Only shapes, as in `rows`."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

DEFAULT_LEASE_SECONDS = 120
DEFAULT_TTL_SECONDS = 1_800
DEFAULT_ACTIVITIES = 1


class SessionOptions(Struct, frozen=True, kw_only=True):
    """What an activity or a worker asks of its session; None is what its author left out."""

    session_id: str
    connection: str | None = None
    queue: str | None = None
    requirements: tuple[str, ...] = ()
    lease_seconds: int | None = None
    ttl_seconds: int | None = None
    max_concurrent_activities: int | None = None
    create_if_missing: bool = True
    allow_reacquire_after_failure: bool = True

    @property
    def lease(self) -> int:
        """The length of the lease in seconds."""
        return self.lease_seconds or DEFAULT_LEASE_SECONDS

    @property
    def ttl(self) -> int:
        """The longest life of the session in seconds."""
        return self.ttl_seconds or DEFAULT_TTL_SECONDS

    @property
    def activities(self) -> int:
        """How many activities may run in the session at the same time."""
        return self.max_concurrent_activities or DEFAULT_ACTIVITIES

    def filled(self, queue: str) -> SessionOptions:
        """Give the options with every default in place, on `queue` unless they name one."""
        return msgspec.structs.replace(
            self,
            queue=self.queue or queue,
            lease_seconds=self.lease,
            ttl_seconds=self.ttl,
            max_concurrent_activities=self.activities,
        )


class WorkerSession(Struct, frozen=True, kw_only=True):
    """One session: active, closed, expired or orphaned. `ttl_expires_at` is set once and never moves."""

    namespace: str
    options: SessionOptions
    status: str = "active"
    lease_owner: str
    lease_expires_at: datetime
    ttl_expires_at: datetime
    closed_at: datetime | None = None
    failure_reason: str | None = None
    last_heartbeat_at: datetime
    created_at: datetime
    updated_at: datetime

    @property
    def session_id(self) -> str:
        """The name that is leased."""
        return self.options.session_id
