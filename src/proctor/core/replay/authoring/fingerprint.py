"""The fingerprint of a condition's predicate: what history compares to notice that the code of a wait was changed.

The text that is hashed is that of the ecosystem's Python form v1, so that runs move between its workers. Code inside
the predicate (a nested lambda) is taken by its own content, never by its address in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from types import CodeType
from typing import Any, Final

_DOMAIN: Final = b"durable-workflow-python.wait-condition.v1\0"


def fingerprint(predicate: Callable[..., Any]) -> str:
    """Give ``sha256:`` and a digest of where the predicate is defined and what it does."""
    code = getattr(predicate, "__code__", None)
    named = predicate if code is not None else type(predicate)
    digest = sha256(_DOMAIN)
    digest.update(f"{getattr(predicate, '__module__', '')}\0".encode())
    digest.update(f"{getattr(named, '__qualname__', '')}\0".encode())
    if isinstance(code, CodeType):
        digest.update(repr(_content(code)).encode("utf-8", "backslashreplace"))
    return f"sha256:{digest.hexdigest()}"


def _content(code: CodeType) -> tuple[Any, ...]:
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_code,
        tuple(_content(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
    )
