"""The codec for tasks that name none: JSON values in, a JSON value out.

A codec is any object with `decode_arguments` and `encode_result`; a task names it as ``module:attribute``. Results
are read by the owner with a plain decoder, never by anything that runs code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Codec(Protocol):
    """How arguments reach a handler and how its result leaves the child."""

    def decode_arguments(self, payload: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Give the positional and keyword arguments held by `payload`."""

    def encode_result(self, value: object) -> bytes:
        """Give the bytes of a handler's result; raise TypeError or ValueError when it has no form."""


class JsonCodec:
    """Plain JSON: ``[[positional …], {keyword …}]`` and one value back."""

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(allow_nan=False).encode
        self._decode = json.JSONDecoder().decode
        self._scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # `decode` without its two patterns

    def encode_arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Give the payload of a call. Raises TypeError or ValueError for values JSON does not have."""
        return self._encode([list(args), dict(kwargs)]).encode()

    def decode_arguments(self, payload: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Give the positional and keyword arguments held by `payload`."""
        text = payload.decode()
        try:
            (args, kwargs), end = self._scan(text, 0)
        except StopIteration:
            end = -1
        if end != len(text):  # white space around it, or no JSON
            args, kwargs = self._decode(text)
        return args, kwargs

    def encode_result(self, value: object) -> bytes:
        """Give the JSON text of `value`. Raises TypeError or ValueError when it has none."""
        return b"null" if value is None else self._encode(value).encode()


JSON = JsonCodec()
