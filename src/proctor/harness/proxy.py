"""The fault proxy: real sockets between workers and any server, and for a chosen exchange the fault that was asked for.

Whatever is not asked for passes: each connection of a client has one of its own to the server, a side that leaves is
followed by the other, and every exchange is recorded with what was done to it and what others did. The proxy makes no
request of its own and tries none again.
"""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h11
import msgspec
import trio

from proctor.errors import UsageError
from proctor.harness.exchanges import Exchange, Request
from proctor.harness.faults import (
    Cut,
    Delay,
    DropRequest,
    DropResponse,
    Duplicate,
    Fault,
    Hold,
    Match,
    Refuse,
    Rewrite,
    Rule,
)
from proctor.harness.peers import Address, Headers, Message, Peer, PeerLeft
from proctor.harness.refusals import refusal
from proctor.harness.talks import Talk

_WORKER_HEADER = b"x-durable-workflow-protocol-version"
_POLL_MEDIA_TYPE = "application/vnd.durable-workflow.poll.v1+json"


class Partition:
    """One worker, or everyone, is cut off: nothing gets through in either direction, and nobody is told. `heal` ends
    it, and so does leaving the block. Made by `FaultProxy.partition`.
    """

    def __init__(self, worker: str | None) -> None:
        self.worker = worker
        self.healed = trio.Event()

    def __enter__(self) -> Partition:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    def heal(self) -> None:
        """Let traffic pass again; what was held back is lost, its connections close."""
        self.healed.set()


class FaultProxy:
    """Stands at `url` in front of a server. Made by `open_fault_proxy`; every method is called from its Trio thread."""

    def __init__(self, address: Address, url: str, hear: Callable[[Exchange], None] | None, remember: int) -> None:
        self.url = url
        self.forgotten = 0
        self._address = address
        self._hear = hear
        self._exchanges: deque[Exchange] = deque(maxlen=remember)
        self._rules: list[Rule] = []
        self._partitions: list[Partition] = []
        self._changed = trio.Event()
        self._numbers = itertools.count(1)
        self._connections = itertools.count(1)
        self._envelope: dict[str, Any] = {}

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The record: every exchange in the order in which they began, the oldest `forgotten` ones excepted."""
        return tuple(self._exchanges)

    def add(
        self,
        fault: Fault,
        operation: str | None = None,
        *,
        method: str | None = None,
        path: str | None = None,
        worker: str | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Rule:
        """Do `fault` to the `nth` exchange that matches from now on, and to `times - 1` more; None has no end.

        Where several rules would act on one exchange the one that was added first does; all of them count it.
        Raises UsageError.
        """
        rule = Rule(fault, Match(operation, method, path, worker), nth=nth, times=times)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Do nothing more for this rule; what it holds is released."""
        if rule in self._rules:
            self._rules.remove(rule)
        rule.release()

    def partition(self, worker: str | None = None) -> Partition:
        """Cut off one worker, or all. A client whose connection has named no worker is cut off only with all."""
        partition = Partition(worker)
        self._partitions.append(partition)
        return partition

    async def wait_for(self, test: Callable[[Exchange], bool]) -> Exchange:
        """Wait until a recorded exchange, past or to come, passes `test`; give the first that does."""
        while True:
            found = next((exchange for exchange in self._exchanges if test(exchange)), None)
            if found is not None:
                return found
            await self._changed.wait()

    # -- the way of one exchange ---------------------------------------------------------------

    async def _converse(self, stream: trio.SocketStream) -> None:
        talk = Talk(next(self._connections), Peer(stream, h11.SERVER), self._address)
        try:
            while await talk.next_request():
                message = await talk.client.message()
                if message is None or not await self._exchange(talk, message):
                    break
        except PeerLeft:
            pass  # a request that never arrived whole is no exchange
        finally:
            await talk.close()

    async def _exchange(self, talk: Talk, message: Message) -> bool:
        """Carry one exchange; give whether the connection has a next one."""
        request = talk.read(message)
        exchange = Exchange(
            next(self._numbers), talk.number, request.method, request.path, request.operation, request.worker,
            trio.current_time(),
        )  # fmt: skip
        self._keep(exchange)
        rule = self._choose(request)
        if self._cut_off(request.worker) is not None:
            rule = None
        if rule is not None:
            exchange.fault = str(rule.fault)
            rule.acts_on(exchange)
        self._tell()
        goes_on = None
        try:
            goes_on = await self._watched(talk, message, request, exchange, rule)
            return goes_on
        finally:
            if goes_on is None:
                exchange.notes.append("the proxy was closed")
            exchange.ended = trio.current_time()
            self._tell()
            if self._hear is not None:
                self._hear(exchange)

    async def _watched(
        self, talk: Talk, message: Message, request: Request, exchange: Exchange, rule: Rule | None
    ) -> bool:
        """Carry an exchange and follow a client that leaves, unless a fault hides that from the server."""
        goes_on = False
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                await talk.client.leaves()
                talk.left.set()
                exchange.notes.append("the client left")
                if rule is None and self._cut_off(request.worker) is None:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(follow)
            try:
                answer = await self._answered(talk, message, request, exchange, rule)
                goes_on = answer is not None and await self._give(talk, answer, request, exchange, rule)
            except PeerLeft as exc:
                exchange.notes.append(str(exc))
            nursery.cancel_scope.cancel()
        return goes_on

    async def _answered(
        self, talk: Talk, message: Message, request: Request, exchange: Exchange, rule: Rule | None
    ) -> Message | None:
        """Get the answer that the client is to have; None when it gets none."""
        if await self._withheld(talk, request, exchange):
            return None
        fault = None if rule is None else rule.fault
        if isinstance(fault, DropRequest):
            return None
        if isinstance(fault, Refuse):
            return self._refused(fault, request)
        if rule is not None:
            await _pause(rule, "request")
        head = talk.request_head(message, plain=isinstance(fault, Rewrite))
        if isinstance(fault, Cut) and fault.where == "request":
            await (await talk.server()).send(head, message.body, part=fault.part)
            return None
        answer = None
        for turn in range(fault.times if isinstance(fault, Duplicate) else 1):
            if turn and not talk.renew():
                exchange.notes.append("the server closed the connection after the first answer")
                await talk.hang_up()
            answer = await self._ask(talk, head, message.body, exchange)
        if rule is not None:
            rule.commits()
            await _pause(rule, "answer")
        if await self._withheld(talk, request, exchange) or isinstance(fault, DropResponse):
            return None
        return _rewritten(answer, fault.change) if isinstance(fault, Rewrite) and answer is not None else answer

    async def _ask(self, talk: Talk, head: h11.Request, body: bytes, exchange: Exchange) -> Message:
        try:
            server = await talk.server()
            await server.send(head, body)
            exchange.sent += 1
            answer = await server.message()
        except PeerLeft as exc:
            raise PeerLeft(f"the server: {exc}") from exc
        if answer is None:
            raise PeerLeft("the server closed the connection before it answered")
        assert isinstance(answer.head, h11.Response)
        exchange.status = answer.head.status_code
        exchange.answered = trio.current_time()
        self._learn(answer)
        self._tell()
        return answer

    async def _give(self, talk: Talk, answer: Message, request: Request, exchange: Exchange, rule: Rule | None) -> bool:
        assert isinstance(answer.head, h11.Response)
        if talk.left.is_set():
            return False
        fault = None if rule is None else rule.fault
        if isinstance(fault, Cut) and fault.where == "answer":
            await talk.client.send(answer.head, answer.body, part=fault.part)
            return False
        await talk.client.send(answer.head, answer.body)
        exchange.given = answer.head.status_code
        return talk.next_cycle()

    # -- partitions, refusals, the record ------------------------------------------------------

    def _cut_off(self, worker: str | None) -> Partition | None:
        self._partitions = [found for found in self._partitions if not found.healed.is_set()]
        return next((found for found in self._partitions if found.worker in (None, worker)), None)

    async def _withheld(self, talk: Talk, request: Request, exchange: Exchange) -> bool:
        """Hold an exchange of a worker that is cut off until that ends; give whether it was held, and so is lost."""
        partition = self._cut_off(request.worker)
        if partition is None:
            return False
        exchange.fault = "partition" if exchange.fault is None else f"{exchange.fault}, partition"
        self._tell()
        await first_of(partition.healed, talk.left)
        return True

    def _choose(self, request: Request) -> Rule | None:
        acting = [rule for rule in self._rules if rule.count(request)]
        return acting[0] if acting else None

    def _refused(self, fault: Refuse, request: Request) -> Message:
        status, body = refusal(
            fault.reason, request, retry_after_seconds=fault.retry_after_seconds, envelope=self._envelope
        )
        content = msgspec.json.encode(body)
        headers: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"retry-after", str(fault.retry_after_seconds).encode()),
        ]
        if "protocol_version" in self._envelope:
            headers.append((_WORKER_HEADER, self._envelope["protocol_version"].encode()))
        return Message(h11.Response(status_code=status, headers=headers), content)

    def _learn(self, answer: Message) -> None:
        """Learn from the server's answers what every worker answer carries (transport.md §3), for refusals."""
        document = None if self._envelope else _document(answer)
        if not isinstance(document, dict):
            return
        stated = document.get("worker_protocol", document)
        if isinstance(stated, dict):
            version = stated.get("protocol_version", stated.get("version"))
            capabilities = stated.get("server_capabilities")
            if isinstance(version, str) and isinstance(capabilities, dict):
                self._envelope = {"protocol_version": version, "server_capabilities": capabilities}

    def _keep(self, exchange: Exchange) -> None:
        if len(self._exchanges) == self._exchanges.maxlen:
            self.forgotten += 1
        self._exchanges.append(exchange)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def first_of(*events: trio.Event) -> None:
    """Wait until one of the events is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


async def _pause(rule: Rule, where: str) -> None:
    fault = rule.fault
    if isinstance(fault, Delay) and fault.where == where:
        await trio.sleep(fault.seconds)
    elif isinstance(fault, Hold) and fault.where == where:
        await rule.released()


def _document(answer: Message) -> Any:
    """The decoded JSON of an answer; None when it has none."""
    body = answer.body
    try:
        if answer.header(b"content-encoding") == "gzip":
            body = zlib.decompress(body, wbits=31)
        return msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, zlib.error):
        return None


def _rewritten(answer: Message, change: Callable[[Any], Any]) -> Message:
    media = answer.header(b"content-type").partition(";")[0].strip()
    document = _document(answer)
    if media == "application/octet-stream":
        content = bytes(change(answer.body))
    elif media == _POLL_MEDIA_TYPE and isinstance(document, dict):
        content = msgspec.json.encode({**document, "body": change(document.get("body"))})
    else:
        content = msgspec.json.encode(change(document))
    framing = (b"content-length", b"transfer-encoding", b"content-encoding")
    headers = [(name, value) for name, value in answer.headers if name not in framing]
    headers.append((b"content-length", str(len(content)).encode()))
    assert isinstance(answer.head, h11.Response)
    return Message(h11.Response(status_code=answer.head.status_code, headers=headers), content)


@asynccontextmanager
async def open_fault_proxy(
    server: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    on_exchange: Callable[[Exchange], None] | None = None,
    remember: int = 10_000,
) -> AsyncIterator[FaultProxy]:
    """Listen on `host` and `port` (0: a free one) in front of `server`, a base URL, as long as the block lasts.

    `on_exchange` hears of every exchange when it is over. `remember` bounds the record. Raises UsageError.
    """
    address = Address.parse(server)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except (OSError, OverflowError) as exc:
        raise UsageError(f"the fault proxy cannot listen on {host} port {port}: {exc}") from exc
    bound = listeners[0].socket.getsockname()[1]
    proxy = FaultProxy(address, f"http://{f'[{host}]' if ':' in host else host}:{bound}", on_exchange, remember)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, proxy._converse, listeners))
        try:
            yield proxy
        finally:
            nursery.cancel_scope.cancel()
