"""A program whose handlers are functions and classes of ``__main__``; prints what they came to."""

from __future__ import annotations

import json

import trio

from proctor_supervisor import Completed, Outcome, SupervisorOptions, Task, open_supervisor

FACTOR = 3


def triple(value: int) -> int:
    return value * FACTOR


class Scaled:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: int) -> int:
        return triple(value) * self.factor

    def method(self, value: int) -> int:
        return value + self.factor


async def asynchronous(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return triple(value)


class OwnError(Exception):
    pass


def fail(value: int) -> None:
    raise OwnError(value)


async def main() -> None:
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        for handler in (triple, Scaled(2), Scaled(2).method, asynchronous, fail):
            outcome: Outcome = await supervisor.run(Task.call(handler, 7))
            if isinstance(outcome, Completed):
                print(json.loads(outcome.result))
            else:
                print(type(outcome).__name__, outcome.failure.type_name, outcome.failure.message)  # type: ignore[union-attr]


if __name__ == "__main__":
    trio.run(main)
