"""A piece of workflow code with several waits inside, usable in both styles of writing a workflow."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Routine(Generic[T]):
    """Runs when it is awaited (``await routine``) or delegated to (``yield from routine``), anew each time."""

    def __init__(self, start: Callable[[], Generator[Any, Any, T]]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, Any, T]:
        return self._start()

    def __iter__(self) -> Generator[Any, Any, T]:
        return self._start()
