"""The client for faults inside an embedded server that runs with ``--faults`` (`ServerOptions(faults=True)`)."""

from __future__ import annotations

from typing import Any, Literal

import httpx2
import msgspec

from proctor.errors import ServerRefused, ServerUnreachable, UsageError

_SECONDS = 30.0


class ServerFaults:
    """What can be done to the server at `url`, a base URL; `token` is one of its control plane.

    Each call is one request and returns the entry that the server recorded. Raises ServerUnreachable, ServerRefused
    when there is nothing to do it to, and UsageError when the server runs without ``--faults``.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def expire_lease(
        self,
        *,
        task_id: str | None = None,
        worker_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """End the lease of one task now, of one worker session, or of all tasks that a worker holds."""
        named = {"task_id": task_id, "worker_id": worker_id, "session_id": session_id, "namespace": namespace}
        return await self._ask("POST", "/expire-lease", {name: value for name, value in named.items() if value})

    async def advance_clock(self, seconds: float) -> dict[str, Any]:
        """Move the server's clock forward; leases and deadlines that have then passed end. No worker's clock moves."""
        return await self._ask("POST", "/advance-clock", {"seconds": seconds})

    async def refuse_admission(
        self,
        reason: Literal["storage_pressure", "storage_admission_unavailable"] = "storage_pressure",
        *,
        retry_after_seconds: int = 1,
    ) -> dict[str, Any]:
        """Refuse every request of the worker plane with 503 until `admit`."""
        return await self._ask(
            "POST", "/refuse-admission", {"reason": reason, "retry_after_seconds": retry_after_seconds}
        )

    async def admit(self) -> dict[str, Any]:
        """Admit requests again."""
        return await self._ask("POST", "/admit", {})

    async def show(self) -> dict[str, Any]:
        """Give the server's time, whether it refuses, how often it did, and the record of all faults."""
        return await self._ask("GET", "")

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            async with httpx2.AsyncClient(timeout=_SECONDS) as client:
                answer = await client.request(method, f"{self._url}/faults{path}", content=content, headers=headers)
        except httpx2.RequestError as exc:
            raise ServerUnreachable(f"no answer from the server at {self._url}: {exc or type(exc).__name__}") from exc
        try:
            told = msgspec.json.decode(answer.content)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ServerUnreachable(f"what answers at {self._url} is not a Proctor server") from exc
        if answer.status_code == 404 and told.get("reason") == "operation_not_found":
            raise UsageError(f"the server at {self._url} has no faults; start it with: proctor server --faults")
        if answer.status_code != 200:
            raise ServerRefused(
                f"the server refused the fault: {told.get('error')}",
                status=answer.status_code,
                reason=str(told.get("reason")),
                body=told,
            )
        found: dict[str, Any] = told
        return found
