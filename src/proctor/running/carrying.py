"""Carrying large payloads for an attempt whose claim is being kept: for as long as it is, and never beyond.

A transfer takes longer than any operation of an attempt, so it holds no lock and has no deadline of its own. It goes
on, again after silence and overload, until it has succeeded, is refused, or the claim is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog
import trio

from proctor.core.attempt import ChildEnd, Returned
from proctor.core.holding import reason_lost
from proctor.errors import ExternalPayloadRejected, PayloadError, ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.transport.external import ExternalPayloads

_RETRY_SECONDS = 0.5

T = TypeVar("T")

_log = structlog.get_logger("proctor.payloads")


@dataclass(frozen=True, slots=True)
class KeptClaim:
    """What a transfer must know of the claim behind it.

    `left` gives the seconds that the claim is certainly ours, 0 when it may be gone; `over` is set when it is lost.
    """

    left: Callable[[], float]
    over: trio.Event


class NotCarried(Exception):
    """A payload was not carried: `reason` says why. The claim is to be given up, nothing may be published for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def stored(end: ChildEnd, payloads: ExternalPayloads, claim: KeptClaim) -> ChildEnd:
    """Store the result of an ended child outside if it is large; raises NotCarried."""
    if not isinstance(end, Returned) or not payloads.goes_outside(end.blob):
        return end
    blob = end.blob
    return replace(end, stored=await carried(lambda: payloads.stored(blob), claim))


async def fetched(field: Any, payloads: ExternalPayloads, claim: KeptClaim) -> Any:
    """Give a payload field with what it refers to in place of the reference.

    Raises NotCarried, and ExternalPayloadUnsupported for what is no reference that anybody could read.
    """
    return await carried(lambda: payloads.resolved(field), claim)


async def carried(transfer: Callable[[], Awaitable[T]], claim: KeptClaim) -> T:
    """Make one transfer while the claim is kept; raises NotCarried when it is refused or the claim is over first.

    Any other PayloadError says that there is nothing to carry.
    """
    reason = "authority_spent"
    result: list[T] = []
    unreadable: PayloadError | None = None
    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_over, claim, scope)
        with scope:
            while not result:
                try:
                    result.append(await transfer())
                except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
                    refused = reason_lost(exc)
                    _log.warning("payload_not_carried", problem=str(exc))
                    if refused is not None:
                        reason = refused
                        break
                    await trio.sleep(_RETRY_SECONDS)
                except ExternalPayloadRejected as exc:
                    _log.warning("payload_not_carried", problem=str(exc))
                    reason = exc.reason
                    break
                except PayloadError as exc:
                    unreadable = exc  # raised outside of the nursery, which would wrap it
                    break
        nursery.cancel_scope.cancel()
    if unreadable is not None:
        raise unreadable
    if not result:
        raise NotCarried(reason)
    return result[0]


async def _until_over(claim: KeptClaim, scope: trio.CancelScope) -> None:
    """Cancel a transfer when its claim is over; the end of the claim moves while it is renewed."""
    while not claim.over.is_set():
        left = claim.left()
        if left <= 0:
            break
        with trio.move_on_after(left):
            await claim.over.wait()
    scope.cancel()
