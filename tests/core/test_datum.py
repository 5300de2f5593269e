"""The hand-written Avro datum against fastavro, an independent reader and writer of the same schema."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proctor.core.datum import MAX_NESTING, read_datum, write_datum
from proctor.errors import PayloadError

NAMESPACE = "durable_workflow.protocol"
BRANCHES: dict[type, tuple[str, str, Any]] = {
    bool: ("BooleanValue", "boolean", "boolean"),
    int: ("LongValue", "long", "long"),
    float: ("DoubleValue", "double", "double"),
    bytes: ("BytesValue", "bytes", "bytes"),
    str: ("StringValue", "string", "string"),
    list: ("ArrayValue", "items", {"type": "array", "items": f"{NAMESPACE}.Value"}),
    dict: ("MapValue", "entries", {"type": "map", "values": f"{NAMESPACE}.Value"}),
}
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": f"{NAMESPACE}.Value",
        "fields": [
            {
                "name": "value",
                "type": [
                    "null",
                    *(
                        {"type": "record", "name": f"{NAMESPACE}.{name}", "fields": [{"name": field, "type": kind}]}
                        for name, field, kind in BRANCHES.values()
                    ),
                ],
            }
        ],
    }
)

LONGS = st.integers(-(2**63), 2**63 - 1)
SCALARS = (
    st.none()
    | st.booleans()
    | LONGS
    | st.integers(-70, 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=80)
    | st.text(max_size=80)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=30,
)


def written(value: object) -> bytes:
    out = bytearray()
    write_datum(out, value)
    return bytes(out)


def peer_written(value: object) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, _record(value))
    return stream.getvalue()


def peer_read(datum: bytes) -> tuple[object, int]:
    """The value and how many bytes of the datum it took."""
    stream = BytesIO(datum)
    record = fastavro.schemaless_reader(stream, SCHEMA, None)
    return _plain(record), stream.tell()


def _record(value: Any) -> dict[str, Any]:
    if value is None:
        return {"value": None}
    name, field, _ = BRANCHES[type(value)]
    if isinstance(value, list):
        value = [_record(item) for item in value]
    elif isinstance(value, dict):
        value = {key: _record(item) for key, item in value.items()}
    return {"value": (f"{NAMESPACE}.{name}", {field: value})}


def _plain(record: Any) -> object:
    if record["value"] is None:
        return None
    ((field, value),) = record["value"].items()
    if field == "items":
        return [_plain(item) for item in value]
    if field == "entries":
        return {key: _plain(item) for key, item in value.items()}
    return value


def alike(left: object, right: object) -> bool:
    """Equal with types, the order of keys and the sign of zero, all of which `repr` shows."""
    return repr(left) == repr(right)


@given(VALUES)
def test_a_value_is_written_as_the_same_bytes_that_fastavro_writes(value: object) -> None:
    assert written(value) == peer_written(value)


@given(VALUES)
def test_what_one_side_writes_the_other_side_reads_as_the_same_value(value: object) -> None:
    datum = written(value)

    assert alike(peer_read(datum), (value, len(datum)))
    assert alike(read_datum(peer_written(value), 0), value)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192])
def test_sizes_on_either_side_of_a_longer_varint_are_written_and_read_as_fastavro_does(size: int) -> None:
    for value in (
        "é" * (size // 2) + "x" * (size % 2),
        b"\xff" * size,
        [None] * size,
        {str(n): n for n in range(size)},
    ):
        datum = written(value)

        assert datum == peer_written(value)
        assert read_datum(datum, 0) == value


@pytest.mark.parametrize("value", ["é" * 2**19, b"\xff" * 2**20], ids=["text", "bytes"])
def test_a_megabyte_is_written_and_read_as_fastavro_does(value: object) -> None:
    datum = written(value)

    assert datum == peer_written(value)
    assert read_datum(datum, 0) == value


def varint(number: int, padding: int = 0) -> bytes:
    """A zig-zag varint with `padding` bytes more than it needs."""
    raw = (number << 1) ^ (number >> 63)
    digits = []
    while raw > 0x7F:
        digits.append(raw & 0x7F)
        raw >>= 7
    digits += [raw] + [0] * padding
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


PADDINGS = st.sampled_from([0, 0, 0, 1, 3])


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> bytes:
    """A datum of `value` in any of the spellings that Avro allows beside the one we write."""

    def number(value: int) -> bytes:
        return varint(value, draw(PADDINGS) if abs(value) < 2**20 else 0)

    def text(value: bytes) -> bytes:
        return number(len(value)) + value

    if value is None:
        return number(0)
    index = number(list(BRANCHES).index(type(value)) + 1)
    if isinstance(value, (list, dict)):
        if isinstance(value, list):
            items = [draw(spelled(item)) for item in value]
        else:
            # a key may come twice, the last one wins
            twice = [text(key.encode()) + b"\x00" for key in value if draw(st.booleans())]
            items = twice + [text(key.encode()) + draw(spelled(item)) for key, item in value.items()]
        blocks = b""
        while items:
            count = draw(st.integers(1, len(items)))
            block = b"".join(items[:count])
            del items[:count]
            blocks += (number(-count) + number(len(block)) if draw(st.booleans()) else number(count)) + block
        return index + blocks + number(0)
    if isinstance(value, str):
        return index + text(value.encode())
    if isinstance(value, bytes):
        return index + text(value)
    if type(value) is int:
        return index + number(value)
    return index + written(value)[1:]


@given(VALUES.flatmap(lambda value: st.tuples(st.just(value), spelled(value))))
def test_every_spelling_that_avro_allows_is_read_as_fastavro_reads_it(case: tuple[object, bytes]) -> None:
    value, datum = case

    found = read_datum(datum, 0)

    assert found == value
    assert alike(peer_read(datum), (found, len(datum)))


# What fastavro lets pass and we refuse (payloads.md §7), by our own words.
STRICTER = (
    "longer than 64 bits",
    "value type that does not exist",  # it counts a negative index from the end of the union
    "cannot hold",
    "bytes follow",
)
DATUM_BYTES = st.sampled_from(bytes.fromhex("00010203040506070809 0a0b0c0d0e0f 10 61 7f 80818c8e ff"))


@given(st.binary(max_size=20) | st.lists(DATUM_BYTES, max_size=60).map(bytes))
@example(bytes.fromhex("0202"))  # dec-bool-2
@example(bytes.fromhex("048200"))  # dec-nonminimal-varint
@example(bytes.fromhex("0c030a0402040400"))  # dec-negative-block: the announced size is wrong
@example(bytes.fromhex("0a01"))
@example(bytes.fromhex("0a0361"))
def test_arbitrary_bytes_are_read_as_fastavro_reads_them_or_refused_for_a_reason(datum: bytes) -> None:
    refusal = ""
    ours: object = None
    try:
        ours = read_datum(datum, 0)
    except PayloadError as exc:
        refusal = str(exc)

    assert not refusal or refusal.startswith("invalid_payload_framing: ")
    try:
        theirs = peer_read(datum)
    except Exception:  # noqa: BLE001  # it raises what its parts raise
        assert refusal
    else:
        assert alike(theirs, (ours, len(datum))) or any(reason in refusal for reason in STRICTER)


@pytest.mark.parametrize(
    ("digits", "number"),
    [
        ("8200", 1),
        ("80808080808080808000", 0),
        ("feffffffffffffffff01", 2**63 - 1),
        ("ffffffffffffffffff01", -(2**63)),
    ],
)
def test_a_varint_of_up_to_ten_bytes_is_read_even_if_it_could_be_shorter(digits: str, number: int) -> None:
    assert read_datum(bytes.fromhex("04" + digits), 0) == number


@pytest.mark.parametrize(
    "digits", ["feffffffffffffffff02", "ffffffffffffffffff7f", "8080808080808080808000", "ff" * 10 + "01", "80" * 10**6]
)
def test_a_varint_beyond_64_bits_or_ten_bytes_is_refused_and_not_wrapped(digits: str) -> None:
    for datum in ("04" + digits, "0a" + digits, "0c" + digits, "0e" + digits, digits):
        with pytest.raises(PayloadError, match="longer than 64 bits"):
            read_datum(bytes.fromhex(datum), 0)


HUGE = {"2**62": varint(2**62), "2**63-1": varint(2**63 - 1), "-2**63": varint(-(2**63)), "10**8": varint(10**8)}


@pytest.mark.parametrize("branch", ["08", "0a", "0c", "0e", "0e02"])
@pytest.mark.parametrize("announced", HUGE)
def test_an_absurd_length_is_refused_before_memory_is_taken_for_it(branch: str, announced: str) -> None:
    no_value = b"\x10"  # so that whoever goes on to read what was announced finds another fault
    datum = bytes.fromhex(branch) + HUGE[announced] + no_value * 1000

    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match=r"invalid_payload_framing: .*(ends too early|announces -)"):
            read_datum(datum, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


@pytest.mark.parametrize("datum", ["0a01", "0803", "0c020a05", "0e0201", "0e020361"])
def test_a_negative_size_is_refused_and_never_moves_the_reader_back(datum: str) -> None:
    with pytest.raises(PayloadError, match="announces -"):
        read_datum(bytes.fromhex(datum), 0)


def test_a_datum_is_read_from_where_it_starts() -> None:
    assert read_datum(b"frame" + written([1, "x"]), 5) == [1, "x"]


def test_a_container_that_is_changed_while_it_is_written_still_gives_a_readable_datum() -> None:
    growing_list: list[Any] = []
    growing_map: dict[str, Any] = {}

    class Sly(list[Any]):
        def __iter__(self) -> Iterator[Any]:  # stands for another thread
            growing_list.append(3)
            growing_map["late"] = 3
            return super().__iter__()

    growing_list += [Sly(), 2]
    assert read_datum(written(growing_list), 0) == [[], 2]

    growing_map = {"a": Sly(), "b": 2}
    assert read_datum(written(growing_map), 0) == {"a": [], "b": 2}
    assert (len(growing_list), len(growing_map)) == (4, 3)


class _Int(int):
    def __int__(self) -> int:
        return -1


class _Str(str):
    def __str__(self) -> str:
        return "another text"

    def encode(self, *_: object) -> bytes:
        return b"another text"


class _Float(float):
    def __float__(self) -> float:
        return -1.0


class _Bytes(bytes):
    def __len__(self) -> int:
        return 1


def test_an_instance_of_a_subclass_is_written_as_the_plain_value_it_holds() -> None:
    entries = OrderedDict(a=_Int(7), b=_Float(0.5))
    entries.move_to_end("a")

    value = [entries, {_Str("key"): _Str("text")}, _Bytes(b"\x00\x01\x02")]

    assert alike(read_datum(written(value), 0), [{"b": 0.5, "a": 7}, {"key": "text"}, b"\x00\x01\x02"])


def test_a_refusal_names_the_place_in_bounded_length() -> None:
    with pytest.raises(PayloadError) as refused:
        written({"ok": [1, {"x" * 100_000: [0.0, float("nan")]}]})

    assert str(refused.value).startswith("non_finite_float: the value['ok'][1]['xxx")
    assert str(refused.value).endswith("[1] is nan")
    assert len(str(refused.value)) < 150


def test_a_key_that_is_no_text_is_refused_at_the_place_of_its_map() -> None:
    with pytest.raises(PayloadError, match=r"^invalid_map_key: the value\[1\] has a key of type bytes, not str$"):
        written([{"fine": 1}, {"also fine": 2, b"k": 3}])


@pytest.mark.parametrize("empty", [[], {}])
def test_an_empty_container_counts_as_a_level_in_both_directions(empty: object) -> None:
    value = empty
    for _ in range(MAX_NESTING - 1):
        value = [value]

    assert read_datum(written(value), 0) == value
    with pytest.raises(PayloadError, match="nesting_too_deep"):
        written([value])
    with pytest.raises(PayloadError, match="nested more than 200 deep"):
        read_datum(b"\x0c\x02" + written(value) + b"\x00", 0)
