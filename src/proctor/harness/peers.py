"""One HTTP/1.1 connection as the fault proxy sees it, from either end: whole messages, and noticing that a peer left.

`h11` does the protocol, as it does below the HTTP client and the embedded server; the bytes go over Trio streams.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

import h11
import trio

from proctor.errors import UsageError

_EARLY_BYTES = 256 * 1024
_RECEIVE_BYTES = 64 * 1024
_CONNECT_SECONDS = 30.0

Headers = list[tuple[bytes, bytes]]


class PeerLeft(Exception):
    """The peer closed its connection, or it broke, or what came over it is not HTTP/1.1; the text says which."""


@dataclass(frozen=True, slots=True)
class Message:
    """A whole request or response."""

    head: h11.Request | h11.Response
    body: bytes

    @property
    def headers(self) -> Headers:
        """The headers, names in lower case, in the order in which they came."""
        return list(self.head.headers)

    def header(self, name: bytes) -> str:
        """The first header of that name, or an empty text."""
        return next((value.decode("latin-1") for found, value in self.head.headers if found == name), "")


class Peer:
    """A connection to a client (`h11.SERVER` is our role) or to the server (`h11.CLIENT`)."""

    def __init__(self, stream: trio.abc.Stream, role: type[h11.SERVER] | type[h11.CLIENT]) -> None:
        self._stream = stream
        self._role = role
        self._http = h11.Connection(role, max_incomplete_event_size=1024 * 1024)
        self._early = bytearray()
        self._ended = False

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; a peer that reads sees its end."""
        await trio.aclose_forcefully(self._stream)

    @property
    def has_left(self) -> bool:
        """Whether the end of the connection has been read."""
        return self._ended

    async def speaks(self) -> bool:
        """Wait until the peer has sent something (true) or has left (false)."""
        while not self._early and not self._ended:
            await self._read_early()
        return bool(self._early)

    async def leaves(self) -> None:
        """Return when the peer has left; what it sends meanwhile is kept for later."""
        while not self._ended:
            if len(self._early) >= _EARLY_BYTES:
                await trio.sleep_forever()  # it sends and does not read; nothing more can be learned of it
            await self._read_early()

    async def _read_early(self) -> None:
        try:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
        except trio.BrokenResourceError:
            data = b""
        if data:
            self._early += data
        else:
            self._ended = True

    async def message(self) -> Message | None:
        """Read the next whole message; None when the peer left before it began one. Raises PeerLeft."""
        head: h11.Request | h11.Response | None = None
        body = bytearray()
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as exc:
                raise PeerLeft(f"what came is not a whole HTTP/1.1 message ({exc})") from exc
            if event is h11.NEED_DATA:
                await self._feed()
            elif isinstance(event, h11.Request | h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return Message(head, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                return None
            elif event is h11.PAUSED:
                raise PeerLeft("it asked for another protocol than HTTP/1.1")

    async def _feed(self) -> None:
        if self._role is h11.SERVER and self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while not self._early and not self._ended:
            await self._read_early()
        data, self._early = bytes(self._early), bytearray()
        self._http.receive_data(data)

    async def send(self, head: h11.Request | h11.Response, body: bytes, *, part: float = 1.0) -> None:
        """Send a message, or only the beginning of one. Raises PeerLeft."""
        if part == 1.0:
            await self._send(head, h11.Data(data=body), h11.EndOfMessage())
        elif body:
            await self._send(head, h11.Data(data=body[: int(len(body) * part)]))
        else:
            # Without a body the head alone might be a whole message.
            beginning = self._http.send(head) or b""
            await self._write(beginning[: len(beginning) // 2])

    async def _send(self, *events: h11.Event) -> None:
        await self._write(b"".join(self._http.send(event) or b"" for event in events))

    async def _write(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as exc:
            raise PeerLeft("it closed the connection while it was written to") from exc

    def next_cycle(self) -> bool:
        """Prepare for the next message; false when this connection has had its last."""
        if self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE:
            return True
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        # Bytes that h11 holds already are the beginning of the next message.
        trailing, _ = self._http.trailing_data
        self._early = bytearray(trailing) + self._early if trailing else self._early
        if trailing:
            self._http = h11.Connection(self._role, max_incomplete_event_size=1024 * 1024)
        return True


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is. Made by `parse`."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a base URL. Raises UsageError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as exc:
            raise UsageError(f"{url!r} is not a URL: {exc}") from exc
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"the server's URL is http(s)://HOST[:PORT], without query and fragment, not {url!r}")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def host_header(self) -> bytes:
        """What the server expects to be called."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}").encode("ascii")

    async def connect(self) -> Peer:
        """Open a connection. Raises PeerLeft."""
        stream: trio.abc.Stream
        try:
            with trio.fail_after(_CONNECT_SECONDS):
                stream = await trio.open_tcp_stream(self.host, self.port)
                if self.tls:
                    secured = trio.SSLStream(stream, ssl.create_default_context(), server_hostname=self.host)
                    await secured.do_handshake()
                    stream = secured
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as exc:
            raise PeerLeft(f"no connection to {self.host} port {self.port}: {exc or type(exc).__name__}") from exc
        return Peer(stream, h11.CLIENT)
