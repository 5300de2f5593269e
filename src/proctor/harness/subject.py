"""The handler that a kill test is about, as a task of the supervisor and as an activity of a worker."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from proctor import activity
from proctor.core import codec
from proctor.errors import UsageError
from proctor.supervising import CHILD_CODEC
from proctor_supervisor import Deadlines, Task


@dataclass(frozen=True)
class Subject:
    """A handler by its place, ``module:qualname``, and JSON values to call it with.

    `timeout` (seconds) bounds one attempt, so that a handler that never ends can be tested too.
    """

    handler: str = "proctor.harness.handlers:family"
    arguments: tuple[Any, ...] = ()
    timeout: float = 30.0

    def __post_init__(self) -> None:
        """Check what can be checked without importing the module."""
        module, colon, name = self.handler.partition(":")
        if not (module and colon and name):
            raise UsageError(f"a handler is named MODULE:FUNCTION, not {self.handler!r}")
        if not 0 < self.timeout <= 3600:
            raise UsageError(f"an attempt may take more than 0 and at most 3600 s, not {self.timeout}")
        try:
            json.dumps(self.arguments, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise UsageError(f"the arguments of {self.handler} have no JSON form: {exc}") from exc

    @property
    def module(self) -> str:
        """The module that is loaded once in the supervisor process."""
        return self.handler.partition(":")[0]

    @cached_property
    def definition(self) -> activity.ActivityDefinition:
        """The handler as an activity, under its own wire name if it has one. Raises UsageError."""
        module, _, name = self.handler.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as exc:
            raise UsageError(f"there is no handler {self.handler}: {exc}") from exc
        try:
            return activity.definition_of(found)
        except TypeError:
            pass
        try:
            return activity.definition_of(activity.defn(name=name)(found))
        except (TypeError, AttributeError) as exc:
            raise UsageError(f"{self.handler} cannot be a handler: {exc}") from exc

    @property
    def function(self) -> Callable[..., Any]:
        """The handler as a worker registers it."""
        return self.definition.function

    def task(self, deadlines: Deadlines | None = None) -> Task:
        """Give one attempt for a supervisor."""
        facts = {
            "task_id": "kill-test",
            "activity_type": self.definition.name,
            "activity_execution_id": "kill-test",
            "activity_attempt_id": "kill-test",
            "attempt_number": 1,
            "task_queue": "kill-test",
            "worker_id": "kill-test",
            "workflow_id": "kill-test",
            "run_id": "kill-test",
            "last_heartbeat": None,
        }
        return Task(
            handler=self.handler,
            payload=codec.encode_bytes(list(self.arguments)),
            codec=CHILD_CODEC,
            context=json.dumps(facts).encode(),
            deadlines=deadlines or Deadlines(),
            stop=self.definition.stop,
        )

    def as_json(self) -> str:
        """Give the subject as one argument for a program."""
        return json.dumps({"handler": self.handler, "arguments": list(self.arguments), "timeout": self.timeout})

    @classmethod
    def from_json(cls, text: str) -> Subject:
        """Read what `as_json` gave."""
        stated = json.loads(text)
        return replace(cls(**stated), arguments=tuple(stated["arguments"]))
