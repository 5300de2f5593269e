"""References to stored payloads: read strictly, put into requests, taken out of histories, checked against bytes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core import codec
from proctor.core.external import (
    REFERENCE_SCHEMA,
    External,
    digest,
    inline_blobs,
    read_envelope,
    read_external_terms,
    read_reference,
    reference_to,
    references_in,
    to_wire,
    with_blobs,
    with_references,
)
from proctor.errors import ExternalPayloadRejected, ExternalPayloadUnsupported
from proctor.server.discovery import cluster_info
from proctor.server.rules.book import Settings

BLOB = codec.encode("a payload")
REFERENCE = reference_to("ep_" + "0" * 26, BLOB.encode())
ENVELOPE = to_wire(External("avro", REFERENCE))
FIELDS = ENVELOPE["external_payload"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def test_a_reference_has_exactly_the_five_keys_of_the_wire() -> None:
    assert {
        "schema": REFERENCE_SCHEMA,
        "reference_id": "ep_" + "0" * 26,
        "codec": "avro",
        "size_bytes": len(BLOB),
        "sha256": digest(BLOB),
    } == FIELDS
    assert read_reference(FIELDS) == REFERENCE
    assert read_envelope(ENVELOPE).external_payload == REFERENCE
    assert digest(External("avro", REFERENCE)) == digest(BLOB)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "durable-workflow.v2.external-payload-reference.v1"},
        {"schema": None},
        {"reference_id": "ep_" + "O" * 26},
        {"reference_id": "ep_" + "0" * 25},
        {"reference_id": "ep_" + "0" * 26 + "\n"},
        {"reference_id": "../" + "0" * 26},
        {"reference_id": 7},
        {"codec": "json"},
        {"codec": None},
        {"size_bytes": -1},
        {"size_bytes": True},
        {"size_bytes": "9"},
        {"size_bytes": 9.0},
        {"sha256": "A" * 64},
        {"sha256": "0" * 63},
        {"sha256": "0" * 64 + "\n"},
        {"sha256": None},
        {"extra": 1},
    ],
)
def test_any_other_reference_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ExternalPayloadUnsupported):
        read_reference({**FIELDS, **changes})


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_reference_that_lacks_something_is_refused(name: str) -> None:
    with pytest.raises(ExternalPayloadUnsupported):
        read_reference({key: value for key, value in FIELDS.items() if key != name})


@pytest.mark.parametrize(
    "envelope",
    [
        {**ENVELOPE, "blob": BLOB},
        {**ENVELOPE, "codec": "json"},
        {"external_payload": FIELDS},
        {**ENVELOPE, "external_payload": None},
        {**ENVELOPE, "external_payload": [FIELDS]},
    ],
)
def test_an_envelope_of_a_reference_holds_nothing_else(envelope: dict[str, Any]) -> None:
    with pytest.raises(ExternalPayloadUnsupported):
        list(references_in([{"payload": envelope}]))


@pytest.mark.parametrize("content", [b"", BLOB.encode()[:-1], BLOB.encode() + b"=", BLOB.encode()[::-1]])
def test_other_bytes_than_the_reference_means_are_refused(content: bytes) -> None:
    assert REFERENCE.check(BLOB.encode()) == BLOB
    with pytest.raises(ExternalPayloadRejected) as caught:
        REFERENCE.check(content)
    assert caught.value.reason == "external_payload_integrity_mismatch"


def test_bytes_that_are_no_text_are_refused_even_when_they_are_meant() -> None:
    with pytest.raises(ExternalPayloadRejected):
        reference_to("ep_" + "0" * 26, b"\xff\xfe").check(b"\xff\xfe")


@given(_JSON)
def test_what_holds_no_reference_is_left_alone(value: Any) -> None:
    before = copy.deepcopy(value)
    assert list(references_in(value)) == []
    assert with_blobs(value, {}) is value
    assert value == before


@given(st.lists(_JSON, max_size=3), _JSON)
def test_references_are_found_and_replaced_wherever_they_are(around: list[Any], beside: Any) -> None:
    value = [*around, {"event": {"payload": {"result": ENVELOPE, "beside": beside}}, "list": [[ENVELOPE]]}]
    before = json.dumps(value)
    assert list(references_in(value)) == [REFERENCE, REFERENCE]
    filled = with_blobs(value, {REFERENCE: BLOB})
    inline = {"codec": "avro", "blob": BLOB}
    assert filled == [*around, {"event": {"payload": {"result": inline, "beside": beside}}, "list": [[inline]]}]
    assert json.dumps(value) == before


def test_a_value_that_nests_deeper_than_any_of_the_protocol_is_refused_as_such() -> None:
    value: Any = ENVELOPE
    for _ in range(5_000):
        value = [value]
    assert list(references_in(value)) == [REFERENCE]
    with pytest.raises(ExternalPayloadUnsupported):
        with_blobs(value, {REFERENCE: BLOB})


def test_commands_give_their_payloads_and_take_references_in_every_form() -> None:
    memo = {"type": "upsert_memo", "entries": {"codec": "avro", "blob": BLOB}}
    commands: list[Any] = [
        {"type": "record_side_effect", "result": BLOB},
        {"type": "start_service_operation", "request_payload": BLOB, "payload_codec": "avro"},
        {"type": "complete_workflow", "result": {"codec": "avro", "blob": BLOB}},
        {"type": "record_local_activity", "arguments": {"codec": "avro", "blob": "short"}, "result": None},
        {"type": "open_condition_wait", "result": BLOB},
        memo,
    ]
    assert list(inline_blobs(commands)) == [BLOB, BLOB, BLOB, "short"]
    stored = with_references(commands, {BLOB: REFERENCE})
    assert stored == [
        {"type": "record_side_effect", "result": ENVELOPE},
        {"type": "start_service_operation", "request_payload": ENVELOPE, "payload_codec": "avro"},
        {"type": "complete_workflow", "result": ENVELOPE},
        commands[3],
        commands[4],
        memo,
    ]
    assert stored[3] is commands[3]
    assert commands[0]["result"] == BLOB


def discovery(**settings: Any) -> dict[str, Any]:
    return cluster_info(
        Settings(**settings), server_id="t", namespace="default", default_namespace="default", workers=[]
    )


def test_the_terms_are_read_from_discovery() -> None:
    terms = read_external_terms(discovery(external_threshold_bytes=700, external_max_bytes=9_000))
    assert terms is not None
    assert (terms.threshold, terms.max_bytes, terms.request_seconds, terms.available) == (700, 9_000, 30.0, True)
    assert read_external_terms(discovery(external_threshold_bytes=None)) is None
    assert read_external_terms({}) is None
    assert read_external_terms({"namespace": {"external_payload_storage": {"enabled": True}}}) is None
    paused = discovery()
    paused["namespace"]["external_payload_storage"]["status"] = "paused"
    terms = read_external_terms(paused)
    assert terms is not None
    assert not terms.available


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("transport",), None),
        (("transport", "version"), 2),
        (("transport", "version"), True),
        (("transport", "schema"), "other"),
        (("transport", "reference_schema"), "other"),
        (("transport", "mode"), "other"),
        (("transport", "upload", "method"), "PUT"),
        (("transport", "upload", "path"), "/elsewhere"),
        (("transport", "fetch"), None),
        (("transport", "fetch", "path_template"), "/elsewhere"),
        (("transport", "limits"), None),
        (("transport", "limits", "max_payload_bytes"), 10),
        (("transport", "limits", "max_payload_bytes"), "10000000"),
        (("transport", "limits", "request_timeout_seconds"), 0),
        (("transport", "limits", "request_timeout_seconds"), float("inf")),
        (("threshold_bytes",), 0),
        (("threshold_bytes",), None),
        (("threshold_bytes",), True),
    ],
)
def test_a_transport_that_is_offered_and_not_known_is_refused(place: tuple[str, ...], value: object) -> None:
    info = discovery()
    within = info["namespace"]["external_payload_storage"]
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = value
    with pytest.raises(ExternalPayloadUnsupported):
        read_external_terms(info)
