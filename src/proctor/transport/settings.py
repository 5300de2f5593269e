"""Where the server is and how calls to it are signed (transport.md §1).

Tokens live here and in the headers made here, nowhere else: the representation of these settings does not
hold them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proctor.core.negotiation import SUPERVISED_PROTOCOL
from proctor.errors import UsageError
from proctor.transport.calls import Call

_WORKER_VERSION = "X-Durable-Workflow-Protocol-Version"
_CONTROL_VERSION = "X-Durable-Workflow-Control-Plane-Version"
POLL_MEDIA_TYPE = "application/vnd.durable-workflow.poll.v1+json"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server and namespace. `worker_token` and `control_token` win over the shared `token` on their
    plane.
    """

    url: str
    namespace: str = "default"
    token: str | None = field(default=None, repr=False)
    worker_token: str | None = field(default=None, repr=False)
    control_token: str | None = field(default=None, repr=False)
    protocol: str = SUPERVISED_PROTOCOL
    """The worker protocol version that worker-plane calls announce."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError as exc:  # a port beyond 65535, a broken IPv6 address
            raise UsageError(f"the server URL {self.url!r} cannot be read: {exc}") from exc
        if not usable:
            raise UsageError(f"the server URL {self.url!r} is not an http:// or https:// address")
        if parts.username is not None or parts.password is not None:
            raise UsageError("the server URL must not hold credentials; pass a token instead")
        if parts.query or parts.fragment or parts.path.rstrip("/").endswith("/api"):
            raise UsageError(f"the server URL {self.url!r} must be the server's root: without /api, query and fragment")
        if not self.namespace or not self.namespace.isascii() or not self.namespace.isprintable():
            raise UsageError(f"the namespace {self.namespace!r} is not a printable ASCII name")
        for token in (self.token, self.worker_token, self.control_token):
            if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
                raise UsageError("a token must be printable ASCII without spaces (its value is not shown)")

    @property
    def base(self) -> str:
        """Give the URL below which every path is sent."""
        return self.url.rstrip("/") + "/api"

    def headers(self, call: Call) -> dict[str, str]:
        """Give the headers of one call; a call never carries the other plane's version or token."""
        worker_plane = call.plane == "worker" or (call.plane == "discovery" and self.worker_token is not None)
        headers = {
            "Accept": f"{POLL_MEDIA_TYPE}, application/json;q=0.9" if call.poll else "application/json",
            "X-Namespace": self.namespace,
        }
        if worker_plane:
            headers[_WORKER_VERSION] = self.protocol
        else:
            headers[_CONTROL_VERSION] = "2"
        token = self._token(call, worker_plane=worker_plane)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _token(self, call: Call, *, worker_plane: bool) -> str | None:
        own, other = (
            (self.worker_token, self.control_token) if worker_plane else (self.control_token, self.worker_token)
        )
        if own is not None or self.token is not None:
            return own if own is not None else self.token
        if other is not None and call.plane != "discovery":
            plane, missing = ("worker", "worker_token") if worker_plane else ("control", "control_token")
            raise UsageError(
                f"{call.method} {call.path} needs a token of the {plane} plane, but only the other plane's "
                f"token is configured; pass {missing} or a shared token"
            )
        return None

    def redacted(self, text: str) -> str:
        """Give a text in which no token of these settings appears."""
        for token in (self.token, self.worker_token, self.control_token):
            if token:
                text = text.replace(token, "[token]")
        return text
