"""Handlers that raise what is hard to tell of."""

from __future__ import annotations

from typing import Any, NoReturn


class Evil(Exception):
    """Raises, when asked anything at all, what few expect."""

    __module__ = property(lambda _self: 1 / 0)

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise SystemExit(3)

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    @property
    def non_retryable(self) -> bool:
        raise GeneratorExit

    def _class(self) -> NoReturn:
        raise MemoryError

    vars()["__class__"] = property(_class)


def raise_evil() -> NoReturn:
    raise Evil


def raise_from_evil() -> NoReturn:
    try:
        raise Evil
    except Evil as evil:
        raise ValueError("outer") from evil


class Empty(Exception):
    """False, as an empty container is."""

    def __len__(self) -> int:
        return 0


def raise_from_empty() -> NoReturn:
    try:
        raise Empty("inner")
    except Empty as empty:
        raise ValueError("outer") from empty


def raise_half_a_character() -> NoReturn:
    raise FileNotFoundError("no file b\udcffd")


def raise_endless_chain() -> NoReturn:
    exc: Exception | None = None
    for number in range(20_000):
        following = ValueError(str(number))
        following.__cause__ = exc
        exc = following
    assert exc is not None
    raise exc


def raise_in_a_ring() -> NoReturn:
    left, right = ValueError("left"), KeyError("right")
    left.__context__, right.__context__ = right, left
    raise left


def raise_deep_group() -> NoReturn:
    group: Exception = ValueError("innermost")
    for _ in range(300):
        group = ExceptionGroup("nested", [group, *[KeyError(str(number)) for number in range(30)]])
    raise group


def recurse() -> NoReturn:
    recurse()


class NonRetryable(Exception):
    non_retryable = True


def raise_non_retryable() -> NoReturn:
    raise NonRetryable("no use")


class LongName(Exception):
    pass


LongName.__name__ = "L" * 100_000


def raise_long_name() -> NoReturn:
    raise LongName


class _Interrupting:
    def __iter__(self) -> NoReturn:
        raise KeyboardInterrupt("while encoding")


class RudeCodec:
    """A codec that raises, or gives what is no bytes."""

    def decode_arguments(self, _payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        return [], {}

    def encode_result(self, value: object) -> Any:
        if value == "interrupt":
            raise KeyboardInterrupt("while encoding")
        return "text"


RUDE = RudeCodec()


def give_interrupt() -> str:
    return "interrupt"


def give_text() -> str:
    return "text"
