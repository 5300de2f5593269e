"""The payload codec against the reference vectors, its own round trip, and hostile bytes."""

from __future__ import annotations

import base64
import enum
import hashlib
import json
import math
import struct
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core import codec
from proctor.errors import ExternalPayloadUnsupported, PayloadError, UnsupportedValueError

# Corners of the reference's reader that need not match (payloads.md §7).
CORNERS = {"dec-bool-2", "dec-long-11byte", "dec-nonminimal-varint"}
FRAME = bytes.fromhex("c301e2a33dff55802237")


class _Plain(enum.Enum):
    Z = 1


class _Int(enum.IntEnum):
    A = 3


class _Str(enum.StrEnum):
    X = "x-val"


class _Anything:
    pass


OBJECTS: dict[str, object] = {
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
    "set": {1},
    "datetime": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "date": date(2026, 1, 2),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=5),
    "plain-enum": _Plain.Z,
    "dataclass": _Anything(),
    "complex": 1j,
    "int-enum": _Int.A,
    "str-enum": _Str.X,
}


def untype(typed: dict[str, Any], vector: str) -> Any:
    """Build the Python value of a vector's typed form."""
    match typed["type"]:
        case "null":
            return None
        case "boolean":
            return typed["value"]
        case "long":
            return int(typed["value"])
        case "double" if "special" in typed:
            return float(typed["special"])
        case "double":
            return struct.unpack(">d", bytes.fromhex(typed["ieee754_be_hex"]))[0]
        case "bytes":
            return base64.b64decode(typed["base64"])
        case "string":
            return "\ud800" if "utf16_escape" in typed else typed["value"]
        case "array":
            return [untype(item, vector) for item in typed["items"]]
        case "python-tuple":
            return tuple(untype(item, vector) for item in typed["items"])
        case "map":
            return {_key(entry["key"]): untype(entry["value"], vector) for entry in typed["entries"]}
        case "generated":
            return "a" * 10_000
        case "python-object":
            return OBJECTS.get(vector, _Anything())
    raise AssertionError(typed)


def _key(key: Any) -> object:
    return {"1": 1, "None": None, "True": True}[key["python"]] if isinstance(key, dict) else key


def same(left: object, right: object) -> bool:
    """Equal with types, order and the sign of zero."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


VECTOR_COUNT = 144


@pytest.fixture(scope="module")
def vectors(shared_fixtures: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared_fixtures / "payload_vectors.json").read_text())["vectors"]
    return found


def test_no_reference_vector_is_left_out(vectors: list[dict[str, Any]]) -> None:
    assert len(vectors) == VECTOR_COUNT
    assert {vector["op"] for vector in vectors} == {"encode", "decode", "decode_envelope"}
    assert {vector["id"] for vector in vectors} >= CORNERS


@pytest.mark.parametrize("position", range(VECTOR_COUNT))
def test_reference_vector(vectors: list[dict[str, Any]], position: int) -> None:
    vector = vectors[position]
    if vector["id"] in CORNERS:
        assert _outcome(vector) in {"decoded", "invalid_payload_framing"}
    elif "error" in vector:
        with pytest.raises(ValueError) as caught:
            _perform(vector)
        assert str(caught.value).partition(":")[0] == vector["error"]["category"] or (
            vector["error"]["category"] == "none" and getattr(caught.value, "category", "") == ""
        )
        assert not vector["error"].get("is_type_error") or isinstance(caught.value, TypeError)
    elif vector["op"] == "encode":
        blob = _perform(vector)
        if "blob" in vector:
            assert blob == vector["blob"]
        else:
            assert len(blob) == vector["blob_len"]
            assert hashlib.sha256(blob.encode()).hexdigest() == vector["blob_sha256"]
        assert same(codec.decode(blob), untype(vector.get("decoded", vector["value"]), ""))
    else:
        assert same(_perform(vector), untype(vector["value"], vector["id"]))


def _outcome(vector: dict[str, Any]) -> str:
    try:
        _perform(vector)
    except PayloadError as exc:
        return exc.category
    return "decoded"


def _perform(vector: dict[str, Any]) -> Any:
    if vector["op"] == "encode":
        return codec.encode(
            untype(vector["value"], vector["id"]) if "enum" not in vector["id"] else OBJECTS[vector["id"]]
        )
    if vector["op"] == "decode":
        return codec.decode(vector["blob"], vector["codec"])
    return codec.decode_value(vector["envelope"], vector["fallback_codec"])


REGRESSIONS = [
    "avro-value-v1-long-zero",
    "json-tagged-null-payload-codec-rejected",
    "json-tagged-payload-codec-rejected",
    "runtime-external-payload-reference-rejected-before-decode",
]


@pytest.mark.parametrize("name", REGRESSIONS)
def test_codec_regression(shared_fixtures: Path, name: str) -> None:
    case = json.loads((shared_fixtures / "codec_regressions" / f"{name}.json").read_text())
    wire: str = case["framing"]["wire_base64"]

    if case["failure_policy"]["operation"] == "round_trip":
        value = untype(case["value"], name)
        assert codec.encode(value) == wire
        assert same(codec.decode(wire), value)
    elif case["framing"]["encoding"] == "utf8-json":
        with pytest.raises(PayloadError) as refused:
            codec.decode(base64.b64decode(wire).decode(), case["protocol"]["codec"])
        assert refused.value.category == case["failure_policy"]["error"]
    else:
        with pytest.raises(ExternalPayloadUnsupported) as unsupported:
            codec.decode_value(json.loads(base64.b64decode(wire)), None)
        assert unsupported.value.reason == case["failure_policy"]["error"]


def test_every_codec_regression_that_was_handed_over_is_listed(shared_fixtures: Path) -> None:
    assert sorted(path.stem for path in (shared_fixtures / "codec_regressions").glob("*.json")) == REGRESSIONS


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=40)
    | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=30,
)


@given(VALUES)
def test_what_is_encoded_decodes_to_the_same_value_with_the_same_types(value: object) -> None:
    assert same(codec.decode(codec.encode(value)), value)
    assert same(codec.decode_bytes(codec.encode_bytes(value)), value)
    assert same(codec.decode_value(codec.envelope(value), None), value)


@given(st.lists(VALUES, max_size=5))
def test_encoded_arguments_come_back_as_the_same_list(arguments: list[object]) -> None:
    assert same(codec.decode_arguments(codec.encode(arguments), "avro"), arguments)


# Bytes that mean something in a datum, so that random data gets past its first value.
DATUM_BYTES = st.sampled_from(bytes.fromhex("00010203040506070809 0a0b0c0d0e0f 10 61 7f 80818c8e ff"))


@given(st.binary(max_size=20) | st.lists(DATUM_BYTES, max_size=60).map(bytes))
def test_arbitrary_datum_bytes_are_decoded_or_refused_with_a_category(datum: bytes) -> None:
    vector = {"op": "decode", "blob": base64.b64encode(FRAME + datum).decode(), "codec": "avro"}

    assert _outcome(vector) in {"decoded", "invalid_payload_framing"}


@given(VALUES, st.data())
def test_no_proper_prefix_and_no_extension_of_a_datum_is_accepted(value: object, data: st.DataObject) -> None:
    framed = codec.encode_bytes(value)
    cut = data.draw(st.integers(0, len(framed) - 1))

    for broken in (framed[:cut], framed + b"\x00"):
        with pytest.raises(PayloadError) as refused:
            codec.decode_bytes(broken)
        assert refused.value.category == "invalid_payload_framing"


@given(st.text(max_size=30) | st.integers() | st.lists(st.integers(), max_size=2) | st.booleans())
def test_a_field_that_is_no_payload_is_refused_with_a_category(field: object) -> None:
    with pytest.raises(PayloadError) as refused:
        codec.decode_value(field, "avro")
    assert refused.value.category == "invalid_payload_framing"


OPENERS = {
    "array": ("0c02", "00"),
    "map": ("0e020261", "00"),
    "negative index": ("0302", "00"),
    "negative map index": ("01020261", "00"),
    "index not minimal": ("8c0002", "00"),
    "index of three bytes": ("8c800002", "00"),
    "negative block": ("0c0102", "00"),
}


@pytest.mark.parametrize("spelling", OPENERS)
@pytest.mark.parametrize("depth", [codec.MAX_NESTING + 1, 200_000])
def test_a_datum_nested_too_deep_is_refused_whatever_the_depth(spelling: str, depth: int) -> None:
    opener, closer = (bytes.fromhex(part) for part in OPENERS[spelling])

    with pytest.raises(PayloadError) as refused:
        codec.decode_bytes(FRAME + opener * depth + b"\x00" + closer * depth)

    assert refused.value.category == "invalid_payload_framing"


def test_the_deepest_allowed_nesting_round_trips_and_one_more_is_refused() -> None:
    value: list[Any] = []
    for _ in range(codec.MAX_NESTING - 1):
        value = [value]

    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(PayloadError, match="nesting_too_deep"):
        codec.encode([value])


def test_a_list_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)

    with pytest.raises(PayloadError, match="nesting_too_deep"):
        codec.encode(loop)


def test_a_wide_value_with_many_containers_is_not_taken_for_a_deep_one() -> None:
    value = [{"number": n, "list": [n], "seven77": {"a": -2}} for n in range(1000)]

    assert codec.decode(codec.encode(value)) == value


def test_a_count_far_beyond_the_datum_is_refused() -> None:
    with pytest.raises(PayloadError, match="invalid_payload_framing"):
        codec.decode_bytes(FRAME + bytes.fromhex("0cfeffffffffffffff01"))


def test_a_refused_value_is_named_by_its_place_and_type_without_its_content() -> None:
    with pytest.raises(UnsupportedValueError) as refused:
        codec.encode(["x", {"when": [date(2026, 1, 2)]}])

    assert "the value[1]['when'][0] is a date" in str(refused.value)
    assert "2026" not in str(refused.value)


def test_a_json_blob_is_refused_with_a_hint_that_says_so() -> None:
    with pytest.raises(PayloadError, match="looks like JSON"):
        codec.decode('{"a": 1}')


@pytest.mark.parametrize("key", ["\ud800", "ok"])
def test_text_that_is_no_unicode_is_refused_by_python_in_keys_and_values(key: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        codec.encode({key: "\udfff"})


def test_an_envelope_with_a_foreign_codec_is_refused_even_without_a_blob() -> None:
    for field in ({"codec": "json", "blob": None}, {"codec": "json"}, {"codec": 7}):
        with pytest.raises(PayloadError, match="unsupported_payload_codec"):
            codec.decode_value(field, "avro")


def test_missing_arguments_are_none_at_all_and_a_bare_value_is_the_only_one() -> None:
    assert codec.decode_arguments(None, "avro") == []
    assert codec.decode_arguments(None, None) == []
    assert codec.decode_arguments(codec.envelope("Ada"), None) == ["Ada"]


def test_integer_and_text_enums_come_back_as_plain_values() -> None:
    assert same(codec.decode(codec.encode({_Str.X: [_Int.A, _Str.X]})), {"x-val": [3, "x-val"]})


def test_the_codec_loads_without_trio_and_without_the_worker() -> None:
    program = (
        "import sys, proctor.core.codec; "
        "print(sorted({'trio', 'anyio', 'httpx2', 'structlog', 'msgspec', 'fastavro'} & sys.modules.keys()))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
