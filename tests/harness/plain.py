"""A server that answers anything and remembers it, to look at the proxy alone; and a client of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import httpx2
import msgspec
import trio

from proctor.harness import FaultProxy, open_fault_proxy
from proctor.harness.peers import Peer, PeerLeft


@dataclass
class PlainServer:
    """`seen` are the requests that arrived whole; `broken` those that did not; `left` counts clients that left."""

    url: str = ""
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    broken: int = 0
    left: int = 0
    answer: dict[str, Any] = field(default_factory=lambda: {"ok": True, "filling": "x" * 1000})
    close: bool = False
    patience: trio.Event | None = None
    changed: trio.Event = field(default_factory=trio.Event)

    async def converse(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with Peer(stream, h11.SERVER) as peer:
            try:
                while (message := await peer.message()) is not None:
                    assert isinstance(message.head, h11.Request)
                    self.seen.append((message.head.method.decode(), message.head.target.decode(), message.body))
                    self.headers.append(dict(message.head.headers))
                    self.note()
                    if self.patience is not None and not await self._wait(peer, self.patience):
                        return
                    content = msgspec.json.encode({**self.answer, "number": len(self.seen)})
                    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
                    if self.close:
                        headers.append((b"connection", b"close"))
                    await peer.send(
                        h11.Response(status_code=200, headers=headers), content if self.seen[-1][0] != "HEAD" else b""
                    )
                    if not peer.next_cycle():
                        return
            except PeerLeft:
                self.broken += 1
                self.note()

    async def _wait(self, peer: Peer, patience: trio.Event) -> bool:
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                await peer.leaves()
                self.left += 1
                self.note()
                nursery.cancel_scope.cancel()

            nursery.start_soon(follow)
            await patience.wait()
            nursery.cancel_scope.cancel()
        return patience.is_set()

    def note(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, what: str, count: int = 1) -> None:
        while True:
            value = getattr(self, what)
            if (value if isinstance(value, int) else len(value)) >= count:
                return
            await self.changed.wait()


@asynccontextmanager
async def plain(**options: Any) -> AsyncIterator[tuple[PlainServer, FaultProxy, httpx2.AsyncClient]]:
    server = PlainServer(**options)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, server.converse, 0, host="127.0.0.1"))
            server.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            async with open_fault_proxy(server.url) as proxy, httpx2.AsyncClient(base_url=proxy.url) as client:
                yield server, proxy, client
            nursery.cancel_scope.cancel()
