"""One connection of a client through the fault proxy, with the one to the server that belongs to it."""

from __future__ import annotations

import h11
import trio

from proctor.harness.exchanges import Request
from proctor.harness.peers import Address, Headers, Message, Peer


class Talk:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, number: int, client: Peer, address: Address) -> None:
        self.number = number
        self.client = client
        self.left = trio.Event()
        self._address = address
        self._server: Peer | None = None
        self._sender: str | None = None

    async def next_request(self) -> bool:
        """Wait for the next request; false when the client left, or the server ended their connection meanwhile."""
        server = self._server
        if server is None:
            return await self.client.speaks()
        spoke = False
        async with trio.open_nursery() as nursery:

            async def follow_server() -> None:
                await server.leaves()
                nursery.cancel_scope.cancel()

            nursery.start_soon(follow_server)
            spoke = await self.client.speaks()
            nursery.cancel_scope.cancel()
        if spoke and server.has_left:
            await self.hang_up()  # this request has not begun yet, so it may have a new connection
        return spoke

    def read(self, message: Message) -> Request:
        """Read a request, and remember who sends on this connection."""
        assert isinstance(message.head, h11.Request)
        request = Request(
            method=message.head.method.decode("ascii"),
            path=message.head.target.decode("ascii").partition("?")[0],
            body=message.body,
            namespace=message.header(b"x-namespace") or "default",
            sender=self._sender,
        )
        self._sender = request.worker
        return request

    def request_head(self, message: Message, *, plain: bool) -> h11.Request:
        """Give the head for the server. `plain` asks for an answer without content encoding."""
        assert isinstance(message.head, h11.Request)
        changed = {b"host", b"expect", *([b"accept-encoding"] if plain else [])}
        headers: Headers = [(b"host", self._address.host_header)]
        headers += [(name, value) for name, value in message.headers if name not in changed]
        target = self._address.prefix.encode("ascii") + message.head.target
        return h11.Request(method=message.head.method, target=target, headers=headers)

    async def server(self) -> Peer:
        """Give the connection to the server, opened when there is none. Raises PeerLeft."""
        if self._server is None:
            self._server = await self._address.connect()
        return self._server

    async def hang_up(self) -> None:
        """Close the connection to the server; the next request gets another."""
        if self._server is not None:
            await self._server.aclose()
            self._server = None

    def renew(self) -> bool:
        """Prepare the connection to the server for another request; false when it has had its last."""
        return self._server is None or self._server.next_cycle()

    def next_cycle(self) -> bool:
        """Prepare both connections for the next exchange; false when one of them has had its last."""
        return self.client.next_cycle() and self.renew()

    async def close(self) -> None:
        """Close both connections."""
        try:
            await self.client.aclose()
        finally:
            await self.hang_up()
