"""What is wrong with a handler is named as a thing, a reason and a remedy; what is fine is left alone."""

from __future__ import annotations

import io
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from handlers import awkward
from proctor.inspection import captured, judge

PLACES: dict[str, Callable[[object], Callable[..., Any]]] = {
    "variable 'value' of its closure": awkward.closure_over,
    "the default of parameter 'held'": awkward.defaulting_to,
    "an argument of its functools.partial": awkward.partial_of,
    "attribute 'held' of its Service": awkward.method_of,
    "variable 'value' of its closure (held by variable 'inner'": awkward.wrapped_around,
}


@pytest.mark.parametrize("where", PLACES)
def test_a_captured_lock_is_found_wherever_it_is_held(where: str) -> None:
    (problem,) = captured(PLACES[where](threading.Lock()))

    assert problem.thing.startswith(f"a lock (lock) in {where}")
    assert "process of its own" in problem.why
    assert "inside the handler" in problem.remedy


def test_containers_are_looked_into() -> None:
    (problem,) = captured(awkward.nested_in(threading.Event()))

    assert problem.thing == "a lock (Event) in variable 'value' of its closure"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (queue.Queue(), "a queue (Queue)"),
        (threading.Thread(), "a thread"),
        (awkward.Handmade(), "a database connection (handlers.awkward.Handmade)"),
        (awkward.RedisClient(), "a connection (handlers.awkward.RedisClient)"),
        ((item for item in "x"), "a generator"),
    ],
)
def test_each_kind_has_a_name(value: object, kind: str) -> None:
    (problem,) = captured(awkward.closure_over(value))

    assert problem.thing.startswith(f"{kind} in ")


def test_a_database_connection_and_its_cursor_are_named() -> None:
    with closing(awkward.connection()) as connection:
        for held, kind in (
            (connection, "a database connection (sqlite3.Connection)"),
            (connection.cursor(), "a database cursor"),
        ):
            (problem,) = captured(awkward.closure_over(held))
            assert problem.thing.startswith(kind)


def test_an_open_socket_file_or_process_is_named_and_a_closed_one_is_not(tmp_path: Path) -> None:
    with socket.socket() as peer, (tmp_path / "file").open("w") as file:
        assert captured(awkward.closure_over(peer))[0].thing.startswith("an open socket")
        assert captured(awkward.closure_over(file))[0].thing.startswith("an open file")
    assert captured(awkward.closure_over(peer)) == captured(awkward.closure_over(file)) == []
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert captured(awkward.closure_over(process))[0].thing.startswith("a running process")


@pytest.mark.parametrize(
    "value", [1, "text", {"a": [1]}, io.StringIO(), sys.__stderr__, awkward.Order(1), object(), len]
)
def test_plain_values_may_be_captured(value: object) -> None:
    assert captured(awkward.closure_over(value)) == []


def test_a_structure_that_holds_itself_ends_the_search() -> None:
    ring: list[object] = []
    ring.append(ring)

    assert captured(awkward.closure_over(ring)) == []


@pytest.mark.parametrize(
    ("handler", "thing"),
    [
        (awkward.takes_an_order, "parameter 'order' of type handlers.awkward.Order"),
        (awkward.open_socket, "parameter 'peer' of type socket.socket"),
        (awkward.needs_a_keyword, "the keyword-only parameter 'mode' without a default"),
        (type, "a signature that Python cannot tell"),
    ],
)
def test_arguments_that_cannot_arrive_are_named(handler: Callable[..., Any], thing: str) -> None:
    (problem,) = judge(handler)

    assert problem.thing == thing
    assert problem.remedy


@pytest.mark.parametrize("handler", [awkward.plain, awkward.generous, awkward.unresolvable])
def test_arguments_that_may_arrive_are_taken(handler: Callable[..., Any]) -> None:
    assert judge(handler) == []
