"""The authority of one admitted attempt while it lives: renewals, heartbeats, and the stop when it ends.

control, heartbeat and outcome of an attempt are serialised by one lock (prepared-local.md §5). Renewals
depend on neither the handler nor its heartbeats. Every validated receipt moves the instant at which the
child must be gone, here and at the supervisor; a refusal, a contradiction or silence until that instant
stops the child.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from proctor.core.attempt import DEADLINE_REFUSAL, Standing
from proctor.core.authority import OPERATION_LIMIT_SECONDS, Authority, Bound, Exchange
from proctor.core.beats import Beats, details_of
from proctor.core.holding import held, reason_lost
from proctor.core.jobs import Limits, Reins
from proctor.core.wire.cancellation import CancellationContext
from proctor.core.wire.control import Active, StopOrder
from proctor.core.wire.prepare import Prepared, Timeouts
from proctor.errors import PayloadError, ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.running.carrying import KeptClaim
from proctor.running.claim import ClaimCalls

RENEWAL_SECONDS = 0.75
"""From one renewal's start to the next; the protocol asks for one at least every second."""
_RETRY_SECONDS = 0.2
_HEARTBEAT_SLACK_SECONDS = 0.5

_log = structlog.get_logger("proctor.attempt")


class AttemptKeeper:
    """Holds one attempt's authority. Its loops run in the nursery of the call and end with it.

    `on_claim_lost` is called at once when the claim behind the attempt is lost, before its child is gone.
    """

    def __init__(
        self,
        calls: ClaimCalls,
        prepared: Prepared,
        exchange: Exchange,
        timeouts: Timeouts,
        reins: Reins,
        *,
        on_claim_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = prepared.identity
        self.holding = held(prepared, exchange)
        self.lock = trio.Lock()
        self.beats = Beats(heartbeat_timeout=timeouts.heartbeat)
        self._calls = calls
        self._timeouts = timeouts
        self.reins = reins
        self._beat_came = trio.Event()
        self._life = trio.CancelScope()
        self._renewed_at = exchange.started
        self._on_claim_lost = on_claim_lost
        self.claim = KeptClaim(self._claim_left, trio.Event())

    @property
    def authority(self) -> Authority:
        """The authority of the newest receipt."""
        return self.holding.authority

    @property
    def lost(self) -> str | None:
        """Why the claim is not ours any more; None while it is."""
        return self.holding.lost

    @property
    def cancellation(self) -> CancellationContext | None:
        """The stop order of a cancellation, once there is one."""
        return self.holding.cancellation

    @property
    def ended(self) -> bool:
        """Tell whether the attempt must stop: its claim is lost or its run is being cancelled."""
        return self.holding.ended

    def standing(self, *, confirmed: bool) -> Standing:
        """Give what `core.attempt.decide` needs to know."""
        return self.holding.standing(confirmed=confirmed)

    def limits(self) -> Limits:
        """Give the instants that the supervisor enforces by itself."""
        return Limits(
            attempt=self.authority.earliest(Bound.START_TO_CLOSE),
            total=self.authority.earliest(Bound.SCHEDULE_TO_CLOSE),
            authority=self._dead_mans_instant(),
            heartbeat_timeout=self._timeouts.heartbeat,
        )

    def _dead_mans_instant(self) -> float:
        """Give the supervisor's authority instant.

        The attempt's own deadlines are enforced by name. The server's heartbeat deadline takes no claim
        away, and this worker asks for that stop itself; the slack only lets the true cause be recorded, not
        the dead man's.
        """
        heartbeat = self.authority.earliest(Bound.HEARTBEAT)
        claim = self.authority.claim_until
        return claim if heartbeat is None else min(claim, heartbeat + _HEARTBEAT_SLACK_SECONDS)

    def offer_heartbeat(self, payload: bytes) -> None:
        """Take a heartbeat of the child; called synchronously by the supervisor's reader."""
        self.beats.offer(payload)
        self._beat_came.set()

    async def keep(self) -> None:
        """Renew until the attempt must stop or one of its deadlines is over."""
        while True:
            # A renewal that took longer than the period is followed by the next one at once.
            await trio.sleep_until(max(trio.current_time(), self._renewed_at + RENEWAL_SECONDS))
            while not self.ended and self.authority.due_deadline(trio.current_time()) is None:
                if await self.renew():
                    break
                await trio.sleep(_RETRY_SECONDS)
            else:
                return

    async def watch(self) -> None:
        """Stop the child at the instant at which authority ends, wherever it has been moved to."""
        while self.authority.until > trio.current_time():
            with trio.CancelScope(deadline=self.authority.until) as self._life:
                await trio.sleep_forever()
        self.holding = self.holding.expire(trio.current_time())
        self._pass_stop_on()

    async def send_heartbeats(self) -> None:
        """Send the newest heartbeat, the first one at once, the following ones at the interval of `Beats`.

        Until the attempt must stop: then one that came last is never sent, and must not be tried again and again.
        """
        while not self.ended and self.authority.until > trio.current_time():
            self._beat_came = trio.Event()
            due = self.beats.due_at(trio.current_time())
            if due is None:
                await self._beat_came.wait()
                continue
            await trio.sleep_until(due)
            if not await self.send_newest_heartbeat():
                await trio.sleep(_RETRY_SECONDS)

    async def renew(self, *, within: float | None = None) -> bool:
        """Send one control call; True when the claim is confirmed and its instants are moved."""
        async with self.lock:
            budget = self.authority.operation_budget(trio.current_time()) if within is None else within
            if budget <= 0 or (self.ended and within is None):
                return False  # what ended while the lock was waited for renews nothing any more
            try:
                receipt, exchange = await self._calls.control(
                    self.identity, self.holding.deadlines, within=budget, cleanup=self.holding.cleanup
                )
            except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
                self._refused(exc, "control")
                return False
            believed = self._believe(receipt, exchange)
            if believed and exchange is not None:
                self._renewed_at = exchange.started
            return believed

    async def send_newest_heartbeat(self) -> bool:
        """Send the newest heartbeat if there is one; True when nothing is left to send."""
        async with self.lock:
            now = trio.current_time()
            budget = self.authority.operation_budget(now)
            payload = self.beats.take(now) if budget > 0 and not self.ended else None
            if payload is None:
                return True
            try:
                details = details_of(payload)
            except PayloadError as exc:
                _log.warning("heartbeat_details_refused", attempt=self.identity.attempt_id, problem=str(exc))
                details = {}
            try:
                receipt, exchange = await self._calls.heartbeat(
                    self.identity,
                    self.holding.deadlines,
                    details,
                    heartbeat_timeout=self._timeouts.heartbeat,
                    within=budget,
                    cleanup=self.holding.cleanup,
                )
            except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
                self._refused(exc, "heartbeat")
                self.beats.give_back(payload)
                return False
            return self._believe(receipt, exchange)

    async def find_cancellation(self) -> None:
        """Ask for the stop order after an outcome was fenced by a cancellation (prepared-local.md §2.6)."""
        await self.renew(within=OPERATION_LIMIT_SECONDS)

    def lose(self, reason: str) -> None:
        """Give the claim up: the child is stopped first, nothing is published."""
        if self.lost is None:
            _log.warning("authority_lost", attempt=self.identity.attempt_id, reason=reason)
            self.holding = self.holding.lose(reason)
            self._pass_stop_on()

    def _claim_left(self) -> float:
        return self.authority.publication_budget(trio.current_time())

    def _pass_stop_on(self) -> None:
        if self.ended:
            self.claim.over.set()
        wanted = self.holding.stop_wanted(trio.current_time())
        if wanted is not None:
            self.reins.request_stop(*wanted)
        if self.lost not in (None, DEADLINE_REFUSAL):
            self._on_claim_lost()

    def _refused(self, exc: ServerRefused | ServerUnreachable | ProtocolBreach, operation: str) -> None:
        """Take a failed operation in: silence and overload leave the authority as it is, all else ends it."""
        reason = reason_lost(exc)
        if reason is None:
            _log.info("attempt_call_failed", attempt=self.identity.attempt_id, operation=operation, problem=str(exc))
            return
        if isinstance(exc, ProtocolBreach):
            _log.error("protocol_breach", attempt=self.identity.attempt_id, rule=exc.rule, problem=str(exc))
        self.lose(reason)

    def _believe(self, receipt: Active | StopOrder, exchange: Exchange | None) -> bool:
        self.holding = self.holding.take(receipt, exchange)
        if self.ended:
            self._pass_stop_on()
            return False
        self._life.deadline = self.authority.until
        self.reins.extend_authority(self._dead_mans_instant())
        return True
