"""The public worker: what to run and how, in one thin class over the shells of `proctor.running`."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import trio

from proctor import activity as activities_of
from proctor import workflow as workflows_of
from proctor.activity import ActivityDefinition
from proctor.client import Client
from proctor.core.jobs import Children
from proctor.core.negotiation import ORDINARY_PROTOCOLS, check_profile
from proctor.core.replay import WorkflowDefinition, replay
from proctor.core.replay.authoring.contracts import command_contract
from proctor.errors import ProctorError, StopUnconfirmed, UsageError
from proctor.inline import InlineHandlers
from proctor.registering import check_handlers
from proctor.running.events import silent
from proctor.running.registration import WorkerIdentity
from proctor.running.service import QUERY_POLLERS, ServiceOptions, WorkerService
from proctor.running.surroundings import Surroundings
from proctor.supervising import SupervisedChildren
from proctor.transport.lanes import open_lanes
from proctor.transport.settings import ServerSettings
from proctor_supervisor import (
    OutputLine,
    StartRefused,
    Supervisor,
    SupervisorOptions,
    UnsupportedPlatform,
    open_supervisor,
)
from proctor_supervisor import StopUnconfirmed as SupervisorStopUnconfirmed

_TOKEN_VARIABLE = "DURABLE_WORKFLOW_AUTH_TOKEN"  # noqa: S105 - the name of a variable, not a token
_MAX_ID_BYTES = 255


class Worker:
    """Runs workflows and their local activities from one task queue.

    Args:
        client: where the server is; the worker opens connections of its own and does not need it open.
        task_queue: the queue to poll.
        workflows: classes decorated with `workflow.defn`.
        activities: functions decorated with `activity.defn`.
        profile: what this worker negotiates, exactly one: ``supervised`` (worker protocol 1.20, the server owns retries
            and deadlines, all handlers in children) or ``ordinary`` (1.18 or 1.19, local activities run inside the
            workflow task; ``async def`` handlers run inline on this program's Trio loop).
        supervisor: how children run; the number of children is also the number of tasks worked on at once.
        worker_id: identity and lease owner, unique among running workers; made up when absent.
        build_id: registered for compatibility routing.
        poll_timeout: whole seconds that one poll waits at the server, at most 60 (default 30).
        queued_activities: how many activities of the queue may run at once, in children beside those of
            `supervisor.children`; with 0 (the default) none is offered or polled for.
        drain_grace: seconds that running attempts may take after `drain` (default 30).
        on_event: called in the loop with plain dicts as things happen; must return at once.
        on_output: called with each line that a handler writes to stdout or stderr.

    Raises UsageError for anything that cannot run as asked.
    """

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str,
        workflows: Iterable[type[Any]] = (),
        activities: Iterable[Callable[..., Any]] = (),
        profile: Literal["supervised", "ordinary"] | str = "supervised",
        supervisor: SupervisorOptions | None = None,
        worker_id: str | None = None,
        build_id: str | None = None,
        poll_timeout: int = 30,
        drain_grace: float = 30.0,
        queued_activities: int = 0,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        on_output: Callable[[OutputLine], None] | None = None,
    ) -> None:
        check_profile(profile)
        self.worker_id = _checked_id("worker_id", worker_id or _made_up_id())
        self.task_queue = _checked_id("task_queue", task_queue)
        self._client = client
        self._workflows = _workflow_definitions(workflows)
        self._activities = _activity_definitions(activities)
        if isinstance(queued_activities, bool) or not isinstance(queued_activities, int) or queued_activities < 0:
            raise UsageError(f"queued_activities is a whole number >= 0, not {queued_activities!r}")
        if not self._workflows and not (queued_activities and self._activities):
            raise UsageError(
                "a worker needs at least one workflow, inside whose runs it runs local activities, "
                "or activities and queued_activities=N"
            )
        if not 0 <= poll_timeout <= 60:
            raise UsageError(f"poll_timeout is 0 to 60 whole seconds, not {poll_timeout!r}")
        if not 0 <= drain_grace < float("inf"):
            raise UsageError(f"drain_grace is a finite number of seconds >= 0, not {drain_grace!r}")
        options = supervisor if supervisor is not None else SupervisorOptions()
        # The codec is loaded once in the supervisor process, not in each child; the token reaches neither.
        self._supervisor = replace(
            options,
            children=options.children + queued_activities,
            withhold=(*options.withhold, _TOKEN_VARIABLE),
            preload=("proctor.child", *options.preload),
        )
        self._options = ServiceOptions(
            identity=WorkerIdentity(
                worker_id=self.worker_id,
                task_queue=self.task_queue,
                workflow_types=tuple(self._workflows),
                slots=options.children,
                build_id=None if build_id is None else _checked_id("build_id", build_id),
                profile=profile,
                queued_slots=queued_activities,
                activity_types=tuple(self._activities),
                command_contracts={name: command_contract(one) for name, one in self._workflows.items()},
            ),
            poll_seconds=poll_timeout,
            drain_grace=drain_grace,
        )
        self._emit = on_event if on_event is not None else silent
        self._on_output = on_output
        self._service: WorkerService | None = None
        self._drain_asked = False
        self._started = False

    def drain(self) -> None:
        """Stop taking new tasks; `run` returns when the running attempts have ended, or their grace is over.

        Synchronous, for any task of the loop, before or during `run`.
        """
        self._drain_asked = True
        if self._service is not None:
            self._service.drain()

    async def run(self) -> None:
        """Register and work until drained or cancelled; every child is proven gone when this returns.

        Raises:
            NegotiationRefused: discovery lacks what the profile needs; nothing was registered.
            ServerUnreachable, ServerRefused: the server could not be asked, or refused the registration.
            AuthorityLost: another worker took this worker id over.
            StopUnconfirmed: a child could not be proven gone; its registration was kept.
            HandlersRefused: a handler cannot run in a child, with the reason and the remedy; nothing was registered.
            UsageError: the supervisor cannot start here, or this worker has already run.
        """
        if self._started:
            raise UsageError("a Worker runs once; make a new one")
        self._started = True
        try:
            await self._run_shielded()
        except BaseExceptionGroup as group:
            single = _single(group)
            if single is None:
                raise
            raise single from single.__cause__

    async def _run_shielded(self) -> None:
        """Run with the supervisor outliving every child, also while this call is being cancelled.

        The supervisor proves stops, so a cancellation reaches the service first, and the supervisor only
        when the service has ended. The shield adds no waiting of its own: the service ends within the stop
        budget.
        """
        service_scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_forward_cancellation, service_scope)
            with trio.CancelScope(shield=True):
                try:
                    await self._serve(service_scope)
                except SupervisorStopUnconfirmed as exc:
                    raise StopUnconfirmed(str(exc)) from exc
                except StartRefused as exc:
                    raise UsageError(f"the supervisor cannot start{self._handlers_of(exc.module)}: {exc}") from exc
                except UnsupportedPlatform as exc:
                    raise UsageError(f"the supervisor cannot start: {exc}") from exc
            nursery.cancel_scope.cancel()

    @property
    def _ordinary(self) -> bool:
        return self._options.identity.profile == "ordinary"

    def _first_settings(self) -> ServerSettings:
        """Announce what every server of the profile takes, until discovery has said what this one speaks."""
        if not self._ordinary:
            return self._client.settings
        return replace(self._client.settings, protocol=ORDINARY_PROTOCOLS[0])

    def _children(self, supervisor: Supervisor) -> Children:
        children = SupervisedChildren(supervisor, self._activities, on_output=self._on_output)
        return InlineHandlers(children, self._activities) if self._ordinary else children

    def _in_children(self) -> dict[str, ActivityDefinition]:
        """Give the handlers that run in children, which are those to be judged there."""
        return {
            name: definition
            for name, definition in self._activities.items()
            if not (self._ordinary and definition.is_async)
        }

    def _handlers_of(self, module: str | None) -> str:
        """Name the handlers of a module at fault, for an error text."""
        names = [
            name
            for name, definition in self._activities.items()
            if module is not None and getattr(definition.function, "__module__", None) == module
        ]
        return f" for handler {', '.join(map(repr, names))}" if names else ""

    async def _serve(self, scope: trio.CancelScope) -> None:
        identity = self._options.identity
        async with (
            open_lanes(self._first_settings(), pollers=identity.slots + identity.queued_slots + QUERY_POLLERS) as lanes,
            open_supervisor(self._supervisor) as supervisor,
        ):
            service = WorkerService(
                self._options,
                lanes,
                workflows=self._workflows,
                replay=replay,
                surroundings=Surroundings(
                    children=self._children(supervisor),
                    activity_types=frozenset(self._activities),
                    worker_id=self.worker_id,
                    task_queue=self.task_queue,
                    emit=self._emit,
                ),
                speaking=lanes.speaking,
            )
            self._service = service
            if self._drain_asked:
                service.drain()
            try:
                with scope:
                    await check_handlers(supervisor, self._in_children())
                    if not supervisor.forks:
                        self._emit({"event": "children_not_forked", "module": supervisor.unsafe_module})
                    await service.run()
            finally:
                self._service = None


async def _forward_cancellation(scope: trio.CancelScope) -> None:
    try:
        await trio.sleep_forever()
    finally:
        scope.cancel()


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Choose the one exception that leaves `run`: an unproven stop first, then our own errors, else the
    only one.
    """
    leaves = list(_leaves(group))
    for kind in (StopUnconfirmed, SupervisorStopUnconfirmed, ProctorError):
        for leaf in leaves:
            if isinstance(leaf, SupervisorStopUnconfirmed):
                error = StopUnconfirmed(str(leaf))
                error.__cause__ = leaf
                return error
            if isinstance(leaf, kind):
                return leaf
    return leaves[0] if len(leaves) == 1 else None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for inner in group.exceptions:
        if isinstance(inner, BaseExceptionGroup):
            yield from _leaves(inner)
        else:
            yield inner


def _made_up_id() -> str:
    return f"{platform.node() or 'worker'}:{os.getpid()}:{secrets.token_hex(4)}"[:_MAX_ID_BYTES]


def _checked_id(name: str, value: str) -> str:
    try:
        usable = isinstance(value, str) and bool(value.strip()) and len(value.encode()) <= _MAX_ID_BYTES
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UsageError(f"{name} must be a non-blank text of at most {_MAX_ID_BYTES} bytes, not {value!r:.100}")
    return value


def _workflow_definitions(classes: Iterable[type[Any]]) -> dict[str, WorkflowDefinition]:
    found: dict[str, WorkflowDefinition] = {}
    for cls in classes:
        try:
            definition = workflows_of.definition_of(cls)
        except TypeError as exc:
            raise UsageError(str(exc)) from exc
        _refuse_twice("workflow", definition.name, found)
        found[definition.name] = definition
    return found


def _activity_definitions(functions: Iterable[Callable[..., Any]]) -> dict[str, ActivityDefinition]:
    found: dict[str, ActivityDefinition] = {}
    for function in functions:
        try:
            definition = activities_of.definition_of(function)
        except TypeError as exc:
            raise UsageError(str(exc)) from exc
        _refuse_twice("activity", definition.name, found)
        found[definition.name] = definition
    return found


def _refuse_twice(kind: str, name: str, found: Iterable[str]) -> None:
    if name in set(found):
        raise UsageError(f"two {kind} definitions are named {name!r}; give each a name of its own")
