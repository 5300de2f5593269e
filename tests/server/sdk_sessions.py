"""A program of the official SDK, unmodified, run by `test_sdk_sessions`: workers that hold, share and lose sessions.

It prints one JSON object with what each step saw. Usage: sdk_sessions.py URL FOLDER; with a third argument it is the
worker that is killed while it holds a session.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

from durable_workflow import Client, Worker, WorkerSessionOptions, activity, workflow
from durable_workflow.errors import ServerError

sys.path.append(str(Path(__file__).parents[1]))

QUEUE = "sessions"
LOSES = WorkerSessionOptions(session_id="lost/one", requirements=("cache:local",), lease_seconds=2, ttl_seconds=90)
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


@activity.defn(name="crunch")
def crunch(number: int) -> int:
    """Note when it begins and ends, with a heartbeat between."""
    with (FOLDER / "spans").open("a") as spans:
        spans.write("+\n")
        spans.flush()
        activity.context().heartbeat_sync({"number": number})
        time.sleep(0.3)
        spans.write("-\n")
    return number


@activity.defn(name="use")
async def use() -> int:
    """Block in the first process that runs it, so that it can be killed there; answer in every other."""
    marker = FOLDER / "running"
    if not marker.exists():
        marker.with_suffix(".new").write_text("running")
        marker.with_suffix(".new").rename(marker)
        await asyncio.sleep(600)
    return 42


@activity.defn(name="linger")
def linger() -> str:
    """Tell which process it is, and go on for ever in the first one; answer in every other."""
    marker = FOLDER / "lingering"
    if marker.exists():
        return "again"
    marker.with_suffix(".new").write_text(str(os.getpid()))
    marker.with_suffix(".new").rename(marker)
    while True:
        time.sleep(0.1)


@workflow.defn(name="fenced")
class Fenced:
    """One activity whose session is ended under its first attempt."""

    def run(self, ctx: Any) -> Generator[Any, Any, str]:
        """Give the result of the second attempt."""
        session = WorkerSessionOptions(session_id="fenced", lease_seconds=600)
        retry = {"max_attempts": 2, "backoff_seconds": [0]}
        result: str = yield ctx.schedule_activity("linger", [], worker_session=session, retry_policy=retry)
        return result


@workflow.defn(name="pair")
class Pair:
    """Two activities of one session in one list, in a process of their own each."""

    def run(self, ctx: Any) -> Generator[Any, Any, list[int]]:
        """Give both results in the order they were asked for."""
        session = WorkerSessionOptions(session_id="auto", lease_seconds=30)
        both = [ctx.schedule_activity("crunch", [number], worker_session=session) for number in (1, 2)]
        results: list[int] = yield both
        return results


@workflow.defn(name="loser")
class Loser:
    """One activity whose worker is killed."""

    def run(self, ctx: Any) -> Generator[Any, Any, int]:
        """Give the result of the second attempt."""
        retry = {"max_attempts": 2, "backoff_seconds": [0]}
        result: int = yield ctx.schedule_activity(
            "use", [], worker_session=LOSES, start_to_close_timeout=6, retry_policy=retry
        )
        return result


def make(
    client: Client,
    name: str,
    *,
    activities: list[Any],
    workflows: list[type],
    sessions: int = 10,
    capabilities: tuple[str, ...] = (),
) -> Worker:
    """Make a worker that has the local cache."""
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=workflows,
        activities=activities,
        worker_id=name,
        capabilities=("cache:local", *capabilities),
        max_concurrent_worker_sessions=sessions,
        poll_timeout=2.0,
    )


async def reason(awaitable: Any) -> str | None:
    """Give the reason why the server refuses."""
    try:
        await awaitable
    except ServerError as refused:
        return refused.reason()
    return None


async def listed(url: str) -> dict[str, Any]:
    """Read what the server shows of all sessions."""
    request = urllib.request.Request(
        url + "/api/worker-sessions", headers={"X-Durable-Workflow-Control-Plane-Version": "2"}
    )

    def read() -> Any:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    rows = (await asyncio.to_thread(read))["sessions"]
    return {row["session_id"]: row for row in rows}


async def expire(url: str, **named: str) -> None:
    """Have the server end a lease."""
    request = urllib.request.Request(
        url + "/faults/expire-lease", json.dumps(named).encode(), {"Content-Type": "application/json"}
    )
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).close())


def is_running(process: int) -> bool:
    """Say whether a process is there and not just unburied."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def finish(*workers: tuple[Worker, asyncio.Task[None]]) -> None:
    """Stop workers and wait for them."""
    for worker, running in workers:
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)


async def lifecycle(client: Client, url: str) -> dict[str, Any]:
    """Create, renew, share out and close; then stop a worker that still holds one."""
    seen: dict[str, Any] = {}
    # A cooperative worker runs its handlers in processes, and looks at the session before and after each.
    cooperative = ("cooperative_cancellation",)
    holder = make(client, "holder", activities=[crunch], workflows=[Pair], sessions=1, capabilities=cooperative)
    other = make(client, "other", activities=[], workflows=[Pair])
    running = [(worker, asyncio.create_task(worker.run())) for worker in (holder, other)]
    while len((await client.list_workers()).workers) < 2:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.05)
    options = WorkerSessionOptions(session_id="named", requirements=("cache:local",), lease_seconds=30)
    mine, theirs = holder.worker_session(options), other.worker_session(options)
    replies = [await mine.create(), await mine.create(), await mine.renew(60)]
    seen["outcomes"] = [reply["outcome"] for reply in replies]
    seen["ttls"] = len({reply["session"]["ttl_expires_at"] for reply in replies})
    second = holder.worker_session(WorkerSessionOptions(session_id="second"))
    gpu = other.worker_session(WorkerSessionOptions(session_id="gpu", requirements=("gpu:absent",)))
    renewal = client.renew_worker_session("other", "named", 30)
    seen["refusals"] = [await reason(each) for each in (theirs.create(), second.create(), gpu.create(), renewal)]
    first = await mine.close()
    seen["closed"] = [first["outcome"], await mine.close() == first, await reason(theirs.create())]

    handle = await client.start_workflow(workflow_type="pair", workflow_id="pair", task_queue=QUEUE, input=[])
    seen["pair"] = await handle.result(timeout=60.0)
    seen["spans"] = (FOLDER / "spans").read_text().split()
    history = await client.get_history("pair", str(handle.run_id), page_size=1_000)
    seen["pair history"] = history["events"]
    seen["auto"] = (await listed(url))["auto"]
    seen["auto is tracked"] = holder._worker_sessions["auto"].active
    await finish(*running)
    seen["auto after stop"] = (await listed(url))["auto"]
    return seen


async def loss(client: Client, url: str) -> dict[str, Any]:
    """Kill the process of a holder, and let another worker take its session and its activity over."""
    seen: dict[str, Any] = {}
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, url, str(FOLDER), "holder", stdin=asyncio.subprocess.DEVNULL
    )
    handle = await client.start_workflow(workflow_type="loser", workflow_id="loser", task_queue=QUEUE, input=[])
    while not (FOLDER / "running").exists():  # noqa: ASYNC110 - the handler tells by this file
        await asyncio.sleep(0.05)
    before = (await listed(url))["lost/one"]
    child.send_signal(signal.SIGKILL)
    await child.wait()
    replacement = make(client, "replacement", activities=[use], workflows=[Loser])
    running = asyncio.create_task(replacement.run())
    seen["result"] = await handle.result(timeout=60.0)
    history = await client.get_history("loser", str(handle.run_id), page_size=1_000)
    seen["history"] = history["events"]
    seen["before"], seen["after"] = before, (await listed(url))["lost/one"]
    stale = next(event["payload"] for event in history["events"] if event["event_type"] == "ActivityStarted")
    late = client.complete_activity_task(
        task_id=stale["activity_attempt"]["task_id"],
        activity_attempt_id=stale["activity_attempt_id"],
        lease_owner="killed",
        result=0,
    )
    seen["late"] = await reason(late)
    seen["late renewal"] = await reason(client.renew_worker_session("killed", "lost/one", 30))
    await finish((replacement, running))
    return seen


async def ended(client: Client, url: str) -> dict[str, Any]:
    """End the session of a worker whose handler runs in it, then its attempt; the next one takes the session again."""
    seen: dict[str, Any] = {}
    # A cooperative worker runs its handlers in processes of their own, and looks at the session every second.
    holder = make(client, "fenced", activities=[linger], workflows=[Fenced], capabilities=("cooperative_cancellation",))
    running = asyncio.create_task(holder.run())
    handle = await client.start_workflow(workflow_type="fenced", workflow_id="fenced", task_queue=QUEUE, input=[])
    while not (FOLDER / "lingering").exists():  # noqa: ASYNC110 - the handler tells by this file
        await asyncio.sleep(0.05)
    process = int((FOLDER / "lingering").read_text())
    await expire(url, session_id="fenced")
    while is_running(process):  # noqa: ASYNC110 - the process table tells nobody
        await asyncio.sleep(0.05)
    history = await client.get_history("fenced", str(handle.run_id), page_size=1_000)
    seen["when stopped"] = [event["event_type"] for event in history["events"]]
    seen["session when stopped"] = (await listed(url))["fenced"]
    await expire(url, worker_id="fenced")  # the attempt's own lease is another one
    seen["result"] = await handle.result(timeout=60.0)
    history = await client.get_history("fenced", str(handle.run_id), page_size=1_000)
    seen["kinds"] = [event["event_type"] for event in history["events"]]
    seen["session"] = (await listed(url))["fenced"]
    await finish((holder, running))
    return seen


async def main(url: str, job: str | None) -> None:
    """Run all steps and print what was seen, or be the worker that is killed."""
    async with Client(url) as client:
        if job is not None:
            await make(client, "killed", activities=[use], workflows=[Loser]).run()
            return
        steps = {"lifecycle": lifecycle, "loss": loss, "ended": ended}
        print(json.dumps({name: await step(client, url) for name, step in steps.items()}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None))
