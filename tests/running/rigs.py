"""A whole worker service between a scripted server and scripted children."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from proctor import workflow
from proctor.core.replay import replay
from proctor.core.replay.authoring.contracts import command_contract
from proctor.running.asking import Apart
from proctor.running.registration import WorkerIdentity
from proctor.running.service import ServiceOptions, WorkerService
from proctor.running.surroundings import Surroundings
from proctor.transport.calls import Transport
from running.scripted_children import Behaviour, ScriptedChildren
from running.scripted_server import ScriptedServer

CALL: dict[str, Any] = {"start_to_close_timeout": 30}


def one_call(**options: Any) -> type[Any]:
    """Make the workflow ``wf`` that awaits one local activity ``act`` and returns its result."""

    @workflow.defn(name="wf")
    class OneCall:
        async def run(self, ctx: Any) -> Any:
            return await ctx.local_activity("act", ["in"], **{**CALL, **options})

    return OneCall


async def in_the_loop(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Answer queries in the loop: a mocked clock must not jump while a thread works."""
    await trio.lowlevel.checkpoint()
    return work()


class Rig:
    """One service and everything around it that a test looks at."""

    def __init__(
        self,
        *behaviours: Behaviour,
        workflow_class: type[Any] | None = None,
        server: ScriptedServer | None = None,
        provable: bool = True,
        enforcing: bool = True,
        slots: int = 1,
        drain_grace: float = 30.0,
        activities: frozenset[str] = frozenset({"act"}),
        replayed: Callable[..., Any] = replay,
        profile: str = "supervised",
        apart: Apart | None = None,
        speaking: Callable[[str], Transport] | None = None,
        children: ScriptedChildren | None = None,
    ) -> None:
        self.server = server if server is not None else ScriptedServer()
        self.children = children or ScriptedChildren(*behaviours, provable=provable, enforcing=enforcing)
        self.events: list[dict[str, Any]] = []
        definition = workflow.definition_of(workflow_class if workflow_class is not None else one_call())
        contracts = {definition.name: command_contract(definition)}
        identity = WorkerIdentity("w", "q", (definition.name,), slots, profile=profile, command_contracts=contracts)
        self.service = WorkerService(
            ServiceOptions(identity, drain_grace=drain_grace),
            self.server,
            workflows={definition.name: definition},
            replay=replayed,
            surroundings=Surroundings(self.children, activities, "w", "q", self.events.append),
            apart=apart or in_the_loop,
            speaking=speaking,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[trio.Nursery]:
        """Run the service beside the test, and stop it at the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def run_to_close(self, *, seconds: float = 120) -> None:
        """Start the run and work until it is closed; fails the test when that takes longer."""
        self.server.start_run()
        with trio.fail_after(seconds):
            async with self.serving():
                await self.server.run_closed.wait()

    async def run_beside(self, act: Callable[[], Awaitable[None]], *, then_cancel: bool = False) -> None:
        """Run the service until it ends while `act` runs beside it; raises what the service raises."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.service.run)
                await act()
                if then_cancel:
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            (single,) = group.exceptions
            raise single from None

    async def run_for(self, seconds: float) -> None:
        """Start the run and work for a while."""
        self.server.start_run()
        async with self.serving():
            await trio.sleep(seconds)

    async def idle_for(self, seconds: float) -> None:
        """Work for a while without any run to work on."""
        async with self.serving():
            await trio.sleep(seconds)

    def attempts(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "attempt_ended"]

    def attempt(self) -> dict[str, Any]:
        (event,) = self.attempts()
        return event
