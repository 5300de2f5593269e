"""Running workflow code step by step: binding its arguments, resuming it, and ending it for certain.

A body is a coroutine (``async def run``), a generator (``yield``) or a plain function that is over at once. Only here
does workflow code run, and only here are its exceptions sorted into those that decide the run and those that do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from proctor.core.replay.authoring.context import WorkflowContext
from proctor.core.replay.decision import WorkflowDefinition
from proctor.core.replay.failures import WorkflowCancelled
from proctor.errors import EntryArgumentsMismatch, WorkflowCodeBroken

_CLOSE_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class Yielded:
    """The code waits for the answer to `command`."""

    command: object


@dataclass(frozen=True, slots=True)
class Returned:
    """The code returned `value`."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception left the code and decides the run."""

    exception: BaseException


_Frame: TypeAlias = "Generator[Any, Any, Any] | Coroutine[Any, Any, Any]"
Progress: TypeAlias = Yielded | Returned | Raised


class Body:
    """One execution of `run`; `resume` until it is over, and `close` in any case."""

    def __init__(self, name: str, instance: object, call: Callable[[], Any]) -> None:
        self.instance = instance
        self.is_open = True
        self._name = name
        self._call = call
        self._frame: _Frame | None = None

    @property
    def is_coroutine(self) -> bool:
        """Whether the code is written with ``await``."""
        return inspect.iscoroutine(self._frame)

    def start(self) -> Progress:
        """Call `run` and go to the first command."""
        outcome = self.evaluate(self._call)
        if isinstance(outcome, Returned) and (inspect.iscoroutine(outcome.value) or inspect.isgenerator(outcome.value)):
            self._frame = outcome.value
            return self.send(None)
        return outcome

    def send(self, value: object) -> Progress:
        """Answer the command with `value` and go on."""
        return self._guard(lambda frame: frame.send(value))

    def throw(self, exception: BaseException) -> Progress:
        """Answer the command with `exception` and go on."""
        return self._guard(lambda frame: frame.throw(exception))

    def evaluate(self, function: Callable[[], Any]) -> Progress:
        """Call a plain function of the workflow; its exceptions are sorted as those of `run`."""
        return sort_exceptions(self._name, lambda: Returned(function()))

    def close(self) -> None:
        """End suspended code; whatever its cleanup does is without effect.

        Raises WorkflowCodeBroken for code that waits again whenever it is told to end.
        """
        self.is_open = False
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                if self._frame is not None:
                    self._frame.close()
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001, S112  # this code has ended or is told to end again
                continue
            return
        raise WorkflowCodeBroken(
            f"{self._name} cannot be stopped: it waits again after GeneratorExit. "
            "Catch Exception, not BaseException, around a command"
        )

    def _guard(self, step: Callable[[_Frame], Any]) -> Progress:
        frame = self._frame
        assert frame is not None

        def resume() -> Progress:
            try:
                return Yielded(step(frame))
            except StopIteration as stop:
                return Returned(stop.value)

        return sort_exceptions(self._name, resume)


def sort_exceptions(name: str, step: Callable[[], Progress]) -> Progress:
    """Run a piece of user code; an exception that decides the run comes back as Raised.

    Raises WorkflowCodeBroken for one that must not (SystemExit, MemoryError); KeyboardInterrupt is the user at the
    terminal and passes through.
    """
    try:
        return step()
    except MemoryError as exc:
        raise WorkflowCodeBroken(f"{name} ran out of memory on this machine") from exc
    except (Exception, WorkflowCancelled) as exc:  # noqa: BLE001  # user code: any exception is its outcome
        return Raised(exc)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        raise WorkflowCodeBroken(
            f"{name} raised {type(exc).__qualname__}, which would end the worker and not the run; "
            "raise an Exception to fail the run"
        ) from exc


def open_body(definition: WorkflowDefinition, context: WorkflowContext, arguments: list[Any]) -> Body:
    """Make a fresh workflow object and bind its `run` (replay.md §3.2); no code of `run` is executed yet.

    Raises EntryArgumentsMismatch, or WorkflowCodeBroken when the class cannot be made without arguments.
    """
    name = f"workflow {definition.name!r}"
    made = sort_exceptions(name, lambda: Returned(definition.cls()))
    if not isinstance(made, Returned):
        exc = made.exception if isinstance(made, Raised) else None
        raise WorkflowCodeBroken(
            f"{name}: {definition.cls.__qualname__}() raised {type(exc).__qualname__}; "
            "a workflow class is made anew, without arguments, in every replay"
        ) from exc
    run: Callable[..., Any] = made.value.run  # type: ignore[attr-defined]  # checked by `defn`
    try:
        inspect.signature(run).bind(context, *arguments)
    except (TypeError, ValueError) as exc:
        raise EntryArgumentsMismatch(
            f"{name}: run() does not take the {len(arguments)} recorded arguments ({exc}); deploy code that takes them"
        ) from exc
    return Body(name, made.value, lambda: run(context, *arguments))
