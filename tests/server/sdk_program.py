"""A program of the official SDK, run by `test_official_sdk`: one worker and one client against a server URL.

It prints one JSON object with what it saw. Usage: sdk_program.py URL result|cancel|large POLICY
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Generator
from typing import Any

from durable_workflow import Client, Worker, activity, workflow

CAPABILITIES = ("cooperative_cancellation", "prepared_local_activities")


@activity.defn(name="greet")
def greet(name: str, attempt_marker: str) -> str:
    """Fail the first time, tell the second."""
    if activity.context().info.attempt_number == 1:
        raise RuntimeError(attempt_marker)
    return f"hello {name}"


@activity.defn(name="linger")
def linger() -> None:
    """Block until killed."""
    time.sleep(600)


@workflow.defn(name="greeter")
class Greeter:
    """A side effect, then a local activity that needs a retry."""

    def run(self, ctx: Any, name: str) -> Generator[Any, Any, list[Any]]:
        number = yield ctx.side_effect(lambda: 7)
        policy = {"max_attempts": 2, "backoff_seconds": [0]}
        greeting = yield ctx.local_activity("greet", [name, "first"], retry_policy=policy)
        return [number, greeting]


@activity.defn(name="repeat")
def repeat(text: str) -> str:
    """Make a large text larger."""
    return text * 2


@workflow.defn(name="repeater")
class Repeater:
    """Large arguments and results everywhere: start, side effect, local activity, signal, memo, the end."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @workflow.signal("add")
    def add(self, text: str) -> None:
        """Take a large text."""
        self.texts.append(text)

    def run(self, ctx: Any, text: str) -> Generator[Any, Any, list[int]]:
        effect = yield ctx.side_effect(lambda: text + "!")
        policy = {"max_attempts": 5, "backoff_seconds": [0]}
        doubled = yield ctx.local_activity("repeat", [effect], retry_policy=policy)
        yield ctx.upsert_memo({"start": text[:5000]})
        yield ctx.wait_condition(lambda: bool(self.texts), key="added")
        return [text, doubled, self.texts[0]]


@workflow.defn(name="lingerer")
class Lingerer:
    """A local activity that never ends by itself."""

    def run(self, ctx: Any, policy: str) -> Generator[Any, Any, None]:
        yield ctx.local_activity("linger", [], cancellation_policy=policy)


async def until(client: Client, workflow_id: str, event_type: str) -> list[str]:
    """Read the history until it holds an event, and give all event types."""
    while True:
        run_id = (await client.describe_workflow(workflow_id)).run_id
        page = await client.get_history(workflow_id, str(run_id))
        types = [event["event_type"] for event in page["events"]]
        if event_type in types:
            return types
        await asyncio.sleep(0.05)


async def main(url: str, job: str, policy: str) -> None:
    """Run the job and print what came of it."""
    async with Client(url) as client:
        worker = Worker(
            client,
            task_queue="q",
            workflows=[Greeter, Lingerer, Repeater],
            activities=[greet, linger, repeat],
            capabilities=CAPABILITIES,
            poll_timeout=5.0,
        )
        running = asyncio.create_task(worker.run())
        seen: dict[str, Any] = {}
        if job == "result":
            handle = await client.start_workflow(
                workflow_type="greeter", workflow_id="sdk", task_queue="q", input=["Ada"]
            )
            seen["result"] = await handle.result(timeout=100.0)
        elif job == "large":
            text = "Ada " * 5000
            handle = await client.start_workflow(
                workflow_type="repeater", workflow_id="sdk", task_queue="q", input=[text]
            )
            await until(client, "sdk", "ConditionWaitOpened")
            await client.signal_workflow("sdk", "add", args=["L" + text])
            seen["as_expected"] = (await handle.result(timeout=100.0)) == [text, (text + "!") * 2, "L" + text]
        else:
            await client.start_workflow(workflow_type="lingerer", workflow_id="sdk", task_queue="q", input=[policy])
            await until(client, "sdk", "ActivityStarted")
            await client.request_workflow_cancellation("sdk", cleanup_timeout_seconds=30)
            await until(client, "sdk", "WorkflowCancelled")
        description = await client.describe_workflow("sdk")
        seen["status"] = description.status
        seen["events"] = await until(client, "sdk", "WorkflowStarted")
        await worker.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
