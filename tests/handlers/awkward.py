"""Handlers that a worker must refuse, each for one reason, beside ones that look alike and are fine."""

from __future__ import annotations

import functools
import socket
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Order:
    number: int


def closure_over(value: object) -> Callable[..., Any]:
    def handler(path: str) -> str:
        return f"{path}{value}"

    return handler


def defaulting_to(value: object) -> Callable[..., Any]:
    def handler(path: str, held: object = value) -> str:
        return f"{path}{held}"

    return handler


def partial_of(value: object) -> Callable[..., Any]:
    return functools.partial(_two, value)


def method_of(value: object) -> Callable[..., Any]:
    return Service(value).handle


def nested_in(value: object) -> Callable[..., Any]:
    return closure_over({"deep": [value]})


def wrapped_around(value: object) -> Callable[..., Any]:
    inner = closure_over(value)

    @functools.wraps(inner)
    def outer(path: str) -> Any:
        return inner(path)

    return outer


class Service:
    def __init__(self, held: object) -> None:
        self.held = held

    def handle(self, path: str) -> str:
        return f"{path}{self.held}"


class Handmade:
    """What a driver's connection looks like, whoever wrote it."""

    def cursor(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class RedisClient:
    def close(self) -> None: ...


def lock() -> object:
    return threading.Lock()


def connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def _two(first: object, path: str) -> str:
    return f"{first}{path}"


def takes_an_order(order: Order) -> int:
    return order.number


def needs_a_keyword(path: str, *, mode: str) -> str:
    return path + mode


def open_socket(peer: socket.socket) -> None: ...


def plain(path: str, limit: float = 1.0, *, mode: str = "r") -> None: ...


def generous(order: Order | None, options: Mapping[str, list[int]], anything: Any, untyped, *rest: int) -> None: ...  # type: ignore[no-untyped-def]


def unresolvable(thing: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class AnswersForAnything:
    """As proxies do: each attribute is there, and none is what it is taken for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__reduce") or name in ("__getstate__", "__setstate__"):
            raise AttributeError(name)
        return "\ud800" if name == "__qualname__" else 5

    def __call__(self) -> str:
        return "called"
