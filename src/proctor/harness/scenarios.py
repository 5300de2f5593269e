"""What is killed in a kill test, when, and what must hold afterwards: one function for each scenario.

A scenario gets the subject, an instant drawn by the caller (seconds after the attempt began) and the mark of its
processes; it gives what happened, in words, and the promises that broke.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from proctor.client import Client
from proctor.errors import WorkflowFailed
from proctor.harness import durable
from proctor.harness.processes import Program, gone, left_over, living, marking, program
from proctor.harness.subject import Subject
from proctor_supervisor import Completed, Deadlines, Failed, Outcome, Stopped, SupervisorOptions, Task, open_supervisor

_GONE_SECONDS = 2.0
_AUTHORITY_SECONDS = 1.0
_FROZEN_SLACK = 0.5
_START_SECONDS = 30.0
_ENDS = ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled")


@dataclass(slots=True)
class Finding:
    """What one kill led to. `broken` lists the promises that did not hold."""

    happened: str = ""
    broken: list[str] = field(default_factory=list)

    def check(self, held: bool, promise: str) -> None:
        """Note a promise that did not hold."""
        if not held:
            self.broken.append(promise)


async def measure(subject: Subject, mark: str) -> tuple[str, float]:
    """Run the handler once undisturbed; give its outcome in words and its duration. Raises UsageError if it cannot."""
    with marking(mark):
        async with open_supervisor(_options(subject)) as supervisor:
            now = trio.current_time()
            outcome = await supervisor.run(subject.task(Deadlines(attempt=now + subject.timeout)))
    return _told(outcome), outcome.duration


async def kill_child(subject: Subject, delay: float, mark: str) -> Finding:
    """The child of the attempt is killed: a typed outcome, its whole tree gone, its place free for the next."""
    return await _kill_below(subject, delay, mark, "child")


async def kill_supervisor(subject: Subject, delay: float, mark: str) -> Finding:
    """The supervisor process is killed: a typed outcome, nothing left of the attempt, and service goes on."""
    return await _kill_below(subject, delay, mark, "supervisor")


async def _kill_below(subject: Subject, delay: float, mark: str, victim: str) -> Finding:
    finding = Finding()
    with marking(mark):
        async with open_supervisor(_options(subject)) as supervisor:
            with supervisor.events() as events:

                async def kill() -> None:
                    async for event in events:
                        if event.kind == "started":
                            await trio.sleep(delay)
                            pid = event.pid if victim == "child" else supervisor.pid
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(pid or event.pid, signal.SIGKILL)
                            return

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill)
                    now = trio.current_time()
                    outcome = await supervisor.run(subject.task(Deadlines(attempt=now + subject.timeout)))
                    nursery.cancel_scope.cancel()
            finding.happened = _told(outcome)
            if isinstance(outcome, Failed) and outcome.kind != "raised":
                kinds = ("signalled",) if victim == "child" else ("supervisor_died", "start_failed", "signalled")
                finding.check(outcome.kind in kinds, f"the outcome is one of {kinds}, not {outcome.kind}")
                finding.check(outcome.sent_by_us is not True, "a stranger's kill is not called ours")
            finding.check(supervisor.running == 0, "the attempt's place is free again")
            again = await supervisor.run(Task.call("proctor.harness.handlers:family", 0.0))
            finding.check(isinstance(again, Completed), f"service goes on: the next attempt is {_told(again)}")
    _nothing(finding, await left_over(mark, within=_GONE_SECONDS))
    return finding


async def kill_owner(subject: Subject, delay: float, mark: str) -> Finding:
    """The program that owns the supervisor is killed: everything below it is gone within 2 s."""
    finding = Finding()
    async with program("proctor.harness.owner", subject.as_json(), mark=mark) as owner:
        await _running(owner)
        await trio.sleep(delay)
        await owner.kill()
        finding.happened = "the owner was killed"
        _nothing(finding, await left_over(mark, within=_GONE_SECONDS))
    return finding


async def freeze_owner(subject: Subject, delay: float, mark: str) -> Finding:
    """The owner is stopped by SIGSTOP: its children are gone when its authority ends, although it is still there."""
    finding = Finding()
    async with program("proctor.harness.owner", subject.as_json(), str(_AUTHORITY_SECONDS), mark=mark) as owner:
        pid = await _running(owner)
        ends = trio.current_time() + _AUTHORITY_SECONDS
        await trio.sleep(min(delay, _AUTHORITY_SECONDS / 2))
        os.kill(owner.pid, signal.SIGSTOP)
        below = set(living(mark)) - {owner.pid}
        with trio.move_on_at(ends + _FROZEN_SLACK) as patience:
            await gone(pid)
        finding.check(not patience.cancelled_caught, f"child {pid} is gone {_FROZEN_SLACK} s after authority ended")
        finding.happened = f"frozen with {len(below)} processes below it"
        await owner.kill()
        _nothing(finding, await left_over(mark, within=_GONE_SECONDS))
    return finding


async def kill_worker(subject: Subject, delay: float, mark: str) -> Finding:
    """A worker is killed in mid-attempt: nothing of it is left, another finishes the run, history has one end."""
    return await _durably(subject, delay, mark, "worker")


async def kill_server(subject: Subject, delay: float, mark: str) -> Finding:
    """The server is killed and started again on its file: nothing acknowledged is lost, history has one end."""
    return await _durably(subject, delay, mark, "server")


async def _durably(subject: Subject, delay: float, mark: str, victim: str) -> Finding:
    finding = Finding()
    worker_mark = f"{mark}-worker"
    with tempfile.TemporaryDirectory(prefix="proctor-kill-test-") as folder:
        start_server = partial(program, "proctor.harness.durable", "server", str(Path(folder, "db")), mark=mark)
        start_worker = partial(program, "proctor.harness.durable", "worker", mark=worker_mark)
        async with start_server("0") as server:
            url = await _listening(server)
            async with start_worker(url, subject.as_json()) as worker, Client(url) as client:
                await _event(worker, "registered")
                handle = await client.start_workflow(
                    "proctor.kill_test",
                    [subject.definition.name, list(subject.arguments), subject.timeout],
                    task_queue=durable.QUEUE,
                )
                await _event(worker, "attempt_started")
                await trio.sleep(delay)
                before = await handle.history()
                if victim == "worker":
                    await worker.kill()
                    _nothing(finding, await left_over(worker_mark, within=_GONE_SECONDS))
                    async with start_worker(url, subject.as_json()):
                        await _finish(finding, handle, before, subject)
                else:
                    await server.kill()
                    async with start_server(url.rpartition(":")[2]) as again:
                        await _listening(again)
                        await _finish(finding, handle, before, subject)
    _nothing(finding, await left_over(worker_mark, within=_GONE_SECONDS))
    _nothing(finding, await left_over(mark, within=_GONE_SECONDS))
    return finding


async def _finish(finding: Finding, handle: Any, before: list[dict[str, Any]], subject: Subject) -> None:
    finding.happened = "the run did not end"
    with trio.move_on_after(subject.timeout * 2 + 30):
        try:
            await handle.result()
            finding.happened = "the run completed"
        except WorkflowFailed as exc:
            finding.happened = f"the run ended as {exc.status}"
    after = await handle.history()
    kinds = [event["event_type"] for event in after]
    ends = sum(kinds.count(kind) for kind in _ENDS)
    run_ends = [kind for kind in kinds if kind in ("WorkflowCompleted", "WorkflowFailed")]
    finding.check(ends == 1, f"the call has exactly one end in history, not {ends}")
    finding.check(len(run_ends) == 1, f"the run has exactly one end in history, not {run_ends}")
    finding.check(after[: len(before)] == before, "what was in history before the kill is there unchanged")


SCENARIOS: Mapping[str, Callable[[Subject, float, str], Awaitable[Finding]]] = {
    "child": kill_child,
    "supervisor": kill_supervisor,
    "owner": kill_owner,
    "frozen-owner": freeze_owner,
    "worker": kill_worker,
    "server": kill_server,
}


def _options(subject: Subject) -> SupervisorOptions:
    return SupervisorOptions(children=1, preload=["proctor.child", "proctor.harness.handlers", subject.module])


def _told(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return f"failed ({outcome.kind}: {outcome.failure.type_name})"
    return f"stopped ({outcome.reason})" if isinstance(outcome, Stopped) else "completed"


def _nothing(finding: Finding, left: list[str]) -> None:
    finding.check(not left, f"nothing is left: {'; '.join(left)}")


async def _running(owner: Program) -> int:
    said = await owner.says()
    if said is None or "running" not in said:
        raise RuntimeError(f"the owner of the kill test did not start the handler; it said {said!r}")
    return int(said["running"])


async def _listening(server: Program) -> str:
    said = await server.says()
    if said is None or "listening" not in said:
        raise RuntimeError(f"the server of the kill test did not start; it said {said!r}")
    return str(said["listening"])


async def _event(worker: Program, name: str) -> None:
    with trio.fail_after(_START_SECONDS):
        while (said := await worker.says()) is not None:
            if said.get("event") == name:
                return
    raise RuntimeError(f"the worker of the kill test ended before {name!r}; what it said stands above")
