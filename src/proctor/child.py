"""The payload codec as a child uses it: arguments in, result out, both as framed codec bytes (payloads.md §2).

Imported in the supervisor process and its children; never by the worker's own loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proctor.core import codec


class _PayloadCodec:
    """Satisfies `proctor_supervisor.child.codecs.Codec`."""

    def decode_arguments(self, payload: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        arguments = codec.decode_bytes(payload)
        return (arguments if isinstance(arguments, list) else [arguments]), {}

    def encode_result(self, value: object) -> bytes:
        return codec.encode_bytes(value)


CODEC = _PayloadCodec()
