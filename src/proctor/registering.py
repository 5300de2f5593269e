"""Registering handlers safely: each one is loaded and judged in a real child before any task is claimed.

Owns the way into that child and the refusal; what is judged is in `proctor.inspection`. What comes back from a child
is hostile and only ever shown.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import cloudpickle
import trio

from proctor import inspection
from proctor.activity import ActivityDefinition
from proctor.errors import HandlerRefusal, HandlersRefused
from proctor.inspection import Problem
from proctor_supervisor import Completed, Deadlines, Outcome, Stopped, Task, TaskRefused

CHECK_SECONDS = 30.0
"""How long loading one handler in its child may take."""

_MOST_SHOWN = 20
_MOST_TEXT = 1000


class RunsChecks(Protocol):
    """What is used of `proctor_supervisor.Supervisor`."""

    @property
    def forks(self) -> bool:
        """Whether children are forked from the preloaded supervisor process."""
        ...

    @property
    def unsafe_module(self) -> str | None:
        """The preloaded module that made forking unsafe."""
        ...

    async def run(self, task: Task) -> Outcome:
        """Run one attempt and give its outcome."""
        ...


async def check_handlers(supervisor: RunsChecks, definitions: Mapping[str, ActivityDefinition]) -> None:
    """Load every handler in a child and judge it there. Raises HandlersRefused with all refusals at once.

    Refused is a handler that cannot travel or be loaded, whose signature is unknown or takes what cannot arrive, that
    captured a socket, lock, connection or the like, or whose preloaded module starts Python threads.
    """
    refusals: dict[str, list[Problem]] = {}

    async def check(definition: ActivityDefinition) -> None:
        refusals[definition.name] = await _problems(supervisor, definition)

    async with trio.open_nursery() as nursery:
        for definition in definitions.values():
            nursery.start_soon(check, definition)
    refuse(
        HandlerRefusal(name, where(definitions[name]), found.thing, found.why, found.remedy)
        for name in definitions
        for found in refusals[name]
    )


def refuse(refusals: Iterable[HandlerRefusal]) -> None:
    """Raise HandlersRefused when there is anything to refuse."""
    found = tuple(refusals)
    if found:
        raise HandlersRefused(found)


def where(definition: ActivityDefinition) -> str:
    """Say where a handler is defined, as ``module.qualname``."""
    function = definition.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}.{name}"


async def _problems(supervisor: RunsChecks, definition: ActivityDefinition) -> list[Problem]:
    # Judged here first: what it captured must be named even where it cannot travel.
    found = inspection.captured(definition.function)
    if found:
        return found
    task = Task(
        handler=functools.partial(inspection.inspect_in_child, definition.function),
        attempt_id=f"check {definition.name}",
        deadlines=Deadlines(attempt=trio.current_time() + CHECK_SECONDS),
    )
    try:
        outcome = await supervisor.run(task)
    except TaskRefused as exc:
        return [_cannot_travel(definition, exc)]
    if isinstance(outcome, Completed):
        return _judged(outcome.result, supervisor, definition)
    module = getattr(definition.function, "__module__", "?")
    if isinstance(outcome, Stopped):
        line = outcome.proof.last_stack_line
        return [
            Problem(
                f"module {module!r}",
                f"importing it in a child did not end within {CHECK_SECONDS:.0f} s"
                + (f", it was at {line}" * bool(line)),
                "do the work inside the handler, not at import",
            )
        ]
    return [
        Problem(
            f"module {module!r}",
            f"it cannot be loaded in a child: {outcome.failure.message or outcome.failure.type_name}"[:_MOST_TEXT],
            "define the handler in a module that can be imported where the worker runs, without side effects",
        )
    ]


def _cannot_travel(definition: ActivityDefinition, refused: TaskRefused) -> Problem:
    """Name what keeps a handler without an import path from being sent."""
    function = definition.function
    for capture in (*inspection.captures(function), *inspection.referenced_globals(function)):
        try:
            cloudpickle.dumps(capture.value)
        except Exception as exc:  # noqa: BLE001 - pickling runs foreign code; whatever it raises, this is the culprit
            return Problem(
                f"a {type(capture.value).__qualname__} in {capture.where}",
                f"it cannot travel to a child: {exc}"[:_MOST_TEXT],
                "make it inside the handler, or define the handler in a module that can be imported",
            )
    return Problem("the function itself", str(refused), "define the handler in a module that can be imported")


def _judged(answer: bytes, supervisor: RunsChecks, definition: ActivityDefinition) -> list[Problem]:
    try:
        facts: Any = json.loads(answer)
        found = [Problem(*(str(text)[:_MOST_TEXT] for text in entry)) for entry in facts["problems"][:_MOST_SHOWN]]
        threads = [str(name)[:100] for name in facts["threads"][:_MOST_SHOWN]]
    except (ValueError, TypeError, KeyError) as exc:
        return [
            Problem("the answer of its child", f"is no judgement: {exc!r}", "do not write to the child's descriptors")
        ]
    module = supervisor.unsafe_module
    if threads and module is not None and getattr(definition.function, "__module__", None) == module:
        found.append(
            Problem(
                f"thread {threads[0]!r}, which importing module {module!r} starts",
                "children are forked from a process that has imported it, and a fork beside a thread can deadlock",
                "start the thread inside the handler, or leave the module out of `preload`",
            )
        )
    return found
