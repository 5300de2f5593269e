"""A transfer goes on exactly as long as the claim behind it: through silence and overload, not past a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_worker.receipts import CLAIM, NOW, TIMEOUTS, prepare
from proctor.core.attempt import Raised, Returned
from proctor.core.authority import Exchange
from proctor.core.external import ExternalTerms, reference_to
from proctor.core.wire.prepare import read_prepare
from proctor.errors import ExternalPayloadRejected, ExternalPayloadUnsupported, ServerRefused, ServerUnreachable
from proctor.running.attempt_keeper import AttemptKeeper
from proctor.running.carrying import KeptClaim, NotCarried, carried, stored
from proctor.transport.calls import Answer, Call
from proctor.transport.external import ExternalPayloads
from running.scripted_children import ScriptedReins

TERMS = ExternalTerms(threshold=10, max_bytes=1_000, request_seconds=5.0, available=True)


class Claim:
    """A claim that is ours until an instant that tests move."""

    def __init__(self, seconds: float) -> None:
        self.until = trio.current_time() + seconds
        self.over = trio.Event()
        self.kept = KeptClaim(lambda: max(0.0, self.until - trio.current_time()), self.over)


class Attempts:
    """A transfer whose tries end as listed; the last one again and again."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.at: list[float] = []

    async def __call__(self) -> str:
        self.at.append(trio.current_time())
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if end is None:
            await trio.sleep_forever()
        if isinstance(end, Exception):
            raise end
        return str(end)


def refused(status: int, reason: str | None = None) -> ServerRefused:
    return ServerRefused("refused", status=status, reason=reason, body={})


async def test_silence_and_overload_are_waited_out(autojump_clock: MockClock) -> None:
    transfer = Attempts(ServerUnreachable("lost"), refused(503, "storage_pressure"), refused(429), "done")
    assert await carried(transfer, Claim(100).kept) == "done"
    assert len(transfer.at) == 4


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (refused(413, "external_payload_oversized"), "external_payload_oversized"),
        (refused(403, "forbidden"), "forbidden"),
        (refused(404), "http_404"),
        (ExternalPayloadRejected("gone", reason="external_payload_not_found"), "external_payload_not_found"),
    ],
)
async def test_a_refusal_ends_it_at_once(end: Exception, reason: str, autojump_clock: MockClock) -> None:
    transfer = Attempts(end)
    with pytest.raises(NotCarried) as caught:
        await carried(transfer, Claim(100).kept)
    assert caught.value.reason == reason
    assert len(transfer.at) == 1


@pytest.mark.parametrize("end", [None, ServerUnreachable("lost")])
async def test_it_ends_with_the_claim_to_the_instant(end: Any, autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    with pytest.raises(NotCarried) as caught:
        await carried(Attempts(end), Claim(7.25).kept)
    assert caught.value.reason == "authority_spent"
    assert trio.current_time() == begun + 7.25


async def test_a_claim_that_is_renewed_meanwhile_lets_it_go_on(autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    claim = Claim(2)

    async def renew() -> None:
        for _ in range(5):
            await trio.sleep(1)
            claim.until = trio.current_time() + 2

    async def slow() -> str:
        await trio.sleep(6)
        return "done"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(renew)
        assert await carried(slow, claim.kept) == "done"
    assert trio.current_time() == begun + 6


async def test_a_claim_that_is_lost_ends_it_at_that_moment(autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    claim = Claim(100)

    async def lose() -> None:
        await trio.sleep(3)
        claim.over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        with pytest.raises(NotCarried):
            await carried(Attempts(None), claim.kept)
        assert trio.current_time() == begun + 3


async def test_a_claim_that_is_over_already_carries_nothing(autojump_clock: MockClock) -> None:
    claim = Claim(100)
    claim.over.set()
    with pytest.raises(NotCarried):
        await carried(Attempts(None), claim.kept)
    with pytest.raises(NotCarried):
        await carried(Attempts(None), Claim(0).kept)


async def test_what_is_no_reference_at_all_is_said_as_such(autojump_clock: MockClock) -> None:
    with pytest.raises(ExternalPayloadUnsupported):
        await carried(Attempts(ExternalPayloadUnsupported("no")), Claim(9).kept)


async def test_a_cancelled_attempt_takes_its_transfer_with_it(autojump_clock: MockClock) -> None:
    with trio.move_on_after(2) as scope:
        await carried(Attempts(None), Claim(100).kept)
    assert scope.cancelled_caught


async def test_only_a_large_result_is_stored(autojump_clock: MockClock) -> None:
    class Storage:
        async def send(self, call: Call, *, within: float) -> Answer:
            assert call.content is not None
            reference = reference_to("ep_" + "0" * 26, call.content)
            wire = {name: getattr(reference, name) for name in reference.__slots__}
            schema = "durable-workflow.v2.runtime-external-payload-upload.v1"
            return Answer(201, {"schema": schema, "transport_version": 1, "reference": wire})

    payloads = ExternalPayloads(Storage(), "worker", TERMS)
    claim = Claim(9).kept
    small, failed = Returned("A" * 10), Raised("E", "no", non_retryable=False)
    assert await stored(small, payloads, claim) is small
    assert await stored(failed, payloads, claim) is failed
    large = await stored(Returned("A" * 11), payloads, claim)
    assert isinstance(large, Returned)
    assert large.stored == reference_to("ep_" + "0" * 26, b"A" * 11)
    assert set(large.result) == {"codec", "external_payload"}


async def test_an_attempt_that_loses_its_claim_ends_its_transfer_at_once(autojump_clock: MockClock) -> None:
    now = trio.current_time()
    prepared = read_prepare(prepare(), claim=CLAIM, nonce="nonce", timeouts=TIMEOUTS)
    calls: Any = None  # it sends nothing
    keeper = AttemptKeeper(calls, prepared, Exchange(now, now, NOW), TIMEOUTS, ScriptedReins())

    async with trio.open_nursery() as nursery:

        async def lose() -> None:
            await trio.sleep(1)
            keeper.lose("workflow_claim_mismatch")

        nursery.start_soon(lose)
        with pytest.raises(NotCarried):
            await carried(trio.sleep_forever, keeper.claim)
    assert trio.current_time() - now == pytest.approx(1)
