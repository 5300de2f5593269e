"""Storing and fetching payloads over a scripted transport: what is sent, what is believed, what is remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trio.testing import MockClock

from proctor.core import codec
from proctor.core.external import (
    UPLOAD_SCHEMA,
    External,
    ExternalTerms,
    Reference,
    reference_to,
    to_wire,
)
from proctor.errors import (
    ExternalPayloadRejected,
    ExternalPayloadUnsupported,
    ProtocolBreach,
    ServerRefused,
)
from proctor.transport.calls import Answer, Call
from proctor.transport.external import ExternalPayloads

TERMS = ExternalTerms(threshold=100, max_bytes=5_000, request_seconds=7.0, available=True)
LARGE = codec.encode("x" * 200)
SMALL = codec.encode("x")


class Storage:
    """An honest server of stored payloads; `lies` change what it answers, one for each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, float]] = []
        self.content: dict[str, bytes] = {}
        self.lies: list[Any] = []

    async def send(self, call: Call, *, within: float) -> Answer:
        self.calls.append((call, within))
        answer = self._honest(call)
        return self.lies.pop(0)(answer) if self.lies else answer

    def _honest(self, call: Call) -> Answer:
        if call.method == "POST":
            assert call.content is not None
            reference = reference_to(f"ep_{len(self.content):026d}", call.content)
            assert dict(call.headers) == reference.headers()
            self.content[reference.reference_id] = call.content
            wire = to_wire(External("avro", reference))["external_payload"]
            return Answer(201, {"schema": UPLOAD_SCHEMA, "transport_version": 1, "reference": wire})
        content = self.content.get(call.path.rpartition("/")[2])
        if content is None:
            return Answer(404, {"reason": "external_payload_not_found"})
        return Answer(
            200, content[: call.most_bytes], headers={name.lower(): value for name, value in call.headers.items()}
        )

    def put(self, blob: str) -> Reference:
        reference = reference_to(f"ep_{len(self.content):026d}", blob.encode())
        self.content[reference.reference_id] = blob.encode()
        return reference


def payloads(storage: Storage, terms: ExternalTerms | None = TERMS) -> ExternalPayloads:
    return ExternalPayloads(storage, "worker", terms)


def command(*blobs: str) -> list[dict[str, Any]]:
    return [{"type": "complete_workflow", "result": {"codec": "avro", "blob": blob}} for blob in blobs]


async def test_only_payloads_above_the_threshold_are_stored_and_each_of_them_once() -> None:
    storage = Storage()
    carrier = payloads(storage)
    exact = "A" * TERMS.threshold
    value = command(SMALL, LARGE, exact, LARGE)

    stored = await carrier.offloaded(value)

    assert [stored[0], stored[2]] == [value[0], value[2]]
    assert stored[1] == stored[3]
    assert set(stored[1]["result"]) == {"codec", "external_payload"}
    (call, within) = storage.calls[0]
    assert (call.plane, call.path, call.content, within) == ("worker", "/external-payloads/v1", LARGE.encode(), 7.0)
    assert len(storage.calls) == 1
    assert await carrier.offloaded(value) == stored
    assert len(storage.calls) == 1
    assert await carrier.resolved(stored) == value
    assert len(storage.calls) == 1  # what was sent is known


async def test_an_upload_serves_later_requests_only_for_a_while(autojump_clock: MockClock) -> None:
    storage = Storage()
    carrier = payloads(storage)
    await carrier.offloaded(command(LARGE))
    autojump_clock.jump(61)
    await carrier.offloaded(command(LARGE))
    assert len(storage.calls) == 2


@pytest.mark.parametrize("terms", [None, replace(TERMS, available=False)])
async def test_where_nothing_can_be_stored_everything_goes_inline(terms: ExternalTerms | None) -> None:
    storage = Storage()
    value = command(LARGE)
    assert await payloads(storage, terms).offloaded(value) is value
    assert storage.calls == []


async def test_a_payload_that_is_too_large_is_not_sent() -> None:
    storage = Storage()
    with pytest.raises(ExternalPayloadRejected) as caught:
        await payloads(storage).offloaded(command("A" * 5_001))
    assert caught.value.reason == "external_payload_oversized"
    assert storage.calls == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "other"},
        {"transport_version": 2},
        {"transport_version": True},
        {"reference": None},
        {"reference": {"sha256": "0" * 64}},
        {"reference": {"size_bytes": 3}},
        {"reference": {"codec": "json"}},
        {"reference": {"reference_id": "../x"}},
    ],
)
async def test_a_receipt_about_anything_else_is_a_breach_and_is_not_referred_to(changes: dict[str, Any]) -> None:
    storage = Storage()

    def lie(answer: Answer) -> Answer:
        body = {**answer.body, **changes}
        if isinstance(changes.get("reference"), dict):
            body["reference"] = {**answer.body["reference"], **changes["reference"]}
        return replace(answer, body=body)

    storage.lies.append(lie)
    carrier = payloads(storage)
    with pytest.raises(ProtocolBreach):
        await carrier.offloaded(command(LARGE))
    stored = await carrier.offloaded(command(LARGE))
    assert stored[0]["result"]["external_payload"]["sha256"] == reference_to("", LARGE.encode()).sha256


async def test_a_refused_upload_says_so() -> None:
    storage = Storage()
    storage.lies.append(lambda answer: Answer(503, {"reason": "storage_pressure"}))
    with pytest.raises(ServerRefused) as caught:
        await payloads(storage).offloaded(command(LARGE))
    assert caught.value.status == 503


async def test_a_reference_is_fetched_once_and_replaced() -> None:
    storage = Storage()
    carrier = payloads(storage)
    reference = storage.put(LARGE)
    history = [{"payload": {"result": to_wire(External("avro", reference))}}] * 3

    assert await carrier.resolved(history) == [{"payload": {"result": {"codec": "avro", "blob": LARGE}}}] * 3
    assert await carrier.resolved(history[:1])
    (call, within) = storage.calls[0]
    assert (call.path, within) == (f"/external-payloads/v1/{reference.reference_id}", 7.0)
    assert dict(call.headers) == reference.headers()
    assert len(storage.calls) == 1


def wrong_bytes(answer: Answer) -> Answer:
    return replace(answer, body=answer.body[::-1])


def too_few(answer: Answer) -> Answer:
    return replace(answer, body=answer.body[:-1])


def too_many(answer: Answer) -> Answer:
    return replace(answer, body=answer.body + b"A")


def other_headers(answer: Answer) -> Answer:
    return replace(answer, headers={**answer.headers, "x-durable-workflow-payload-sha256": "0" * 64})


def no_headers(answer: Answer) -> Answer:
    return replace(answer, headers={})


def no_bytes(answer: Answer) -> Answer:
    return replace(answer, body={"codec": "avro"})


LIES = [wrong_bytes, too_few, too_many, other_headers, no_headers, no_bytes]


@pytest.mark.parametrize("lie", LIES)
async def test_wrong_bytes_are_asked_for_again_and_never_believed(lie: Any) -> None:
    storage = Storage()
    carrier = payloads(storage)
    field = to_wire(External("avro", storage.put(LARGE)))

    storage.lies += [lie, lie]
    assert await carrier.resolved(field) == {"codec": "avro", "blob": LARGE}
    assert len(storage.calls) == 3

    storage.lies += [lie] * 3
    other = codec.encode("y" * 200)
    with pytest.raises(ExternalPayloadRejected) as caught:
        await carrier.resolved(to_wire(External("avro", storage.put(other))))
    assert caught.value.reason == "external_payload_integrity_mismatch"
    assert len(storage.calls) == 6


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "external_payload_not_found", ExternalPayloadRejected),
        (410, "external_payload_expired", ExternalPayloadRejected),
        (422, "external_payload_integrity_mismatch", ExternalPayloadRejected),
        (403, "external_payload_unauthorized", ServerRefused),
        (401, "unauthorized", ServerRefused),
        (503, "external_payload_unavailable", ServerRefused),
        (503, "external_payload_not_found", ServerRefused),
        (429, None, ServerRefused),
    ],
)
async def test_what_asking_again_cannot_change_is_told_from_what_it_may(
    status: int, reason: str | None, kind: type[Exception]
) -> None:
    storage = Storage()
    storage.lies += [lambda answer: Answer(status, {"reason": reason})] * 3
    with pytest.raises(kind) as caught:
        await payloads(storage).resolved(to_wire(External("avro", storage.put(LARGE))))
    assert getattr(caught.value, "reason", None) == reason


async def test_what_is_larger_than_anything_stored_is_not_fetched() -> None:
    storage = Storage()
    with pytest.raises(ExternalPayloadRejected):
        await payloads(storage).resolved(to_wire(External("avro", storage.put("A" * 6_000))))
    assert storage.calls == []


async def test_without_terms_no_reference_is_readable() -> None:
    storage = Storage()
    with pytest.raises(ExternalPayloadUnsupported):
        await payloads(storage, None).resolved([to_wire(External("avro", storage.put(LARGE)))])
    assert await payloads(storage, None).resolved([1]) == [1]


async def test_what_is_remembered_is_bounded() -> None:
    storage = Storage()
    carrier = payloads(storage, replace(TERMS, max_bytes=100_000_000))
    blobs = [letter * 30_000_000 for letter in "ABCD"]
    fields = [to_wire(External("avro", storage.put(blob))) for blob in blobs]
    for field in fields:
        await carrier.resolved(field)
    assert carrier._size <= 64 * 1024 * 1024
    await carrier.resolved(fields[3])
    assert len(storage.calls) == 4
    await carrier.resolved(fields[0])
    assert len(storage.calls) == 5
