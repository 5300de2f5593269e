"""`serve`: the development server as one Trio task: store, sweep and HTTP, started and ended together.

Cancelling it ends parked polls with `task: null`, lets answers that are under way go out, closes the listener and
folds the database into its file.
"""

from __future__ import annotations

import logging
import re
import secrets
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from wsgiref.handlers import format_date_time

import anycorn
import trio
from anycorn.typing import Framework

from proctor.errors import UsageError
from proctor.server.app import Api
from proctor.server.clock import Clock, SystemClock
from proctor.server.credentials import Credentials, Token
from proctor.server.database import open_database
from proctor.server.faults import Faults, JumpingClock
from proctor.server.ids import Ids
from proctor.server.polling import CAPACITY
from proctor.server.rules.book import Settings
from proctor.server.rules.quotas import UNBOUNDED, Quotas
from proctor.server.store import Store, open_store
from proctor.server.waiting import DeadlineSweep, QueueBell

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
PROTOCOLS = ("1.18", "1.19", "1.20")

# Clients drop idle connections long before this, so a request never meets a closing connection.
_KEEP_ALIVE_SECONDS = 75
_GRACE_SECONDS = 3.0
# A client that takes nothing of its answer for this long is given up. Sending is shielded, so it would otherwise keep a
# server from stopping.
_UNREAD_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is run.

    `database` None keeps everything in memory. `port` 0 picks a free one. `protocol` is the advertised worker protocol
    (1.18, 1.19 or 1.20). Times are seconds. With `power_loss_safe` an acknowledged write survives power loss, without
    it only the death of the process. Tokens are asked for only where given; `worker_token` opens the worker plane,
    `control_token` the control plane, each of `tokens` what its roles say. At most `long_polls` polls of workers, and
    as many for queries, are held at once. The first of `namespaces` is the default, each has
    the same `quotas`.
    `faults` adds the routes of `proctor.server.faults`, for kill tests only.
    Clients store payloads larger than `external_threshold_bytes` beside requests and history; None offers no storage.
    """

    host: str = "127.0.0.1"
    port: int = 0
    database: Path | None = None
    protocol: str = "1.20"
    workflow_task_lease_seconds: float = 10.0
    cleanup_lease_seconds: float = 10.0
    namespaces: tuple[str, ...] = ("default",)
    worker_token: str | None = field(default=None, repr=False)
    control_token: str | None = field(default=None, repr=False)
    tokens: tuple[Token, ...] = ()
    power_loss_safe: bool = True
    max_payload_bytes: int = 2_097_152
    faults: bool = False
    long_polls: int = CAPACITY
    quotas: Quotas = UNBOUNDED
    external_threshold_bytes: int | None = 262_144

    def settings(self) -> Settings:
        """Give what the rules need of these options. Raises UsageError for an impossible value."""
        if self.protocol not in PROTOCOLS:
            raise UsageError(f"protocol {self.protocol!r} is not one of {', '.join(PROTOCOLS)}")
        for seconds in (self.workflow_task_lease_seconds, self.cleanup_lease_seconds):
            if not 0 < seconds <= 86_400:
                raise UsageError(f"a workflow task lease lasts more than 0 and at most 86400 s, not {seconds}")
        if self.long_polls < 0:
            raise UsageError(f"a server holds 0 or more long polls, not {self.long_polls}")
        if not self.namespaces:
            raise UsageError("a server needs at least one namespace")
        for name in self.namespaces:
            if not _NAMESPACE.fullmatch(name):
                raise UsageError(
                    f"a namespace has 1 to 128 letters, digits and ._:- and begins with a letter or digit, not {name!r}"
                )
        threshold = self.external_threshold_bytes
        if threshold is not None and threshold < 1:
            raise UsageError(f"payloads are stored outside above a size of at least 1 byte, not {threshold}")
        return Settings(
            protocol=self.protocol,
            lease_seconds=self.workflow_task_lease_seconds,
            cleanup_lease_seconds=self.cleanup_lease_seconds,
            max_payload_bytes=self.max_payload_bytes,
            quotas=self.quotas,
            # What a request does not take inline must be stored outside.
            external_threshold_bytes=None if threshold is None else min(threshold, self.max_payload_bytes),
        )


async def serve(
    options: ServerOptions,
    *,
    clock: Clock | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the server until cancelled; `task_status` is started with the base URL once it listens.

    Raises UsageError when the address cannot be listened on, and StorageError when the database cannot be used.
    """
    settings = options.settings()
    with _listen(options.host, options.port) as listener:
        database = await trio.to_thread.run_sync(
            lambda: open_database(options.database, power_loss_safe=options.power_loss_safe)
        )
        with database:
            stopping = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_set_when_cancelled, stopping)
                # Shielded, so that a cancelled server stops in order instead of cutting answers off.
                with trio.CancelScope(shield=True):
                    time = clock or SystemClock(database.newest_instant())
                    if options.faults:
                        time = JumpingClock(time)
                    store = open_store(database, clock=time, ids=Ids(), settings=settings)
                    await _run(options, store, listener, stopping, task_status)
                nursery.cancel_scope.cancel()


async def _set_when_cancelled(event: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        event.set()


async def _run(
    options: ServerOptions,
    store_context: AbstractAsyncContextManager[Store],
    listener: socket.socket,
    stopping: trio.Event,
    task_status: trio.TaskStatus[str],
) -> None:
    async with store_context as store:
        bell = QueueBell()
        sweep = DeadlineSweep(store, bell)
        store.listen(bell.hear)
        store.listen(sweep.hear)
        credentials = Credentials(*options.tokens, worker=options.worker_token, control=options.control_token)
        faults = None
        if isinstance(store.clock, JumpingClock):
            faults = Faults(store, store.clock, credentials, options.namespaces[0])
        api = Api(
            store,
            bell,
            server_id=f"embedded-{secrets.token_hex(4)}",
            credentials=credentials,
            namespaces=options.namespaces,
            stopping=stopping,
            faults=faults,
            poll_capacity=options.long_polls,
        )
        base_url = _base_url(listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweep.run)
            config = _config(listener, store.clock)

            listening = trio.Event()

            async def run_http() -> None:
                await anycorn.serve(
                    cast(Framework, api.application()),
                    config,
                    shutdown_trigger=stopping.wait,
                    task_status=_Started(listening),
                    mode="asgi",
                )
                nursery.cancel_scope.cancel()

            nursery.start_soon(run_http)
            await listening.wait()
            task_status.started(base_url)


class _Started:
    """Hears from anycorn that it listens; its own kind of task status is not Trio's."""

    def __init__(self, event: trio.Event) -> None:
        self._event = event

    def started(self, value: list[str] | None = None) -> None:
        """Note that the server accepts connections."""
        self._event.set()


class _Config(anycorn.Config):
    """Dates answers by the server's clock, because workers tell from the date how long a lease lasts."""

    clock: Clock

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """Give the headers of every answer."""
        date = format_date_time(self.clock.now().timestamp()).encode("ascii")
        return [(b"date", date), *super().response_headers(protocol)]


def _config(listener: socket.socket, clock: Clock) -> anycorn.Config:
    config = _Config()
    config.clock = clock
    config.include_date_header = False
    # anycorn owns the descriptor it is given, so it gets one of its own.
    config.bind = [f"fd://{listener.dup().detach()}"]
    config.errorlog = logging.getLogger("proctor.server.http")
    config.include_server_header = False
    config.keep_alive_timeout = _KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = 2**31
    config.graceful_timeout = _GRACE_SECONDS
    return config


def _listen(host: str, port: int) -> socket.socket:
    """Bind the address, or raise UsageError saying why it cannot be."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"a port is a number from 0 to 65535, not {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"cannot listen on {host}: the name is not known on this machine") from exc
    family, kind, _, _, address = found[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_SECONDS * 1_000)
        listener.bind(address)
        listener.listen(100)
    except OSError as exc:
        listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {exc.strerror}. Stop what uses the port, choose another one with "
            "--port, or let the system pick one with --port 0."
        ) from exc
    return listener


def _base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
