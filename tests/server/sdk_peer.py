"""A program of the official SDK, unmodified, run by `test_sdk_peer`: one worker, one client, many workflows at once.

It prints one JSON object: for each scenario the result, the final status and the types of all events, or the error
that the client raised. Usage: sdk_peer.py URL
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from durable_workflow import Client, Worker, activity, workflow

QUEUE = "peers"
Steps = Generator[Any, Any, Any]
Scenario = Callable[[Client], Awaitable[Any]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register what the client does; the workflow id is the function's name."""
    SCENARIOS[function.__name__] = function
    return function


async def run(client: Client, name: str, workflow_type: str, *arguments: Any) -> Any:
    """Start a workflow and wait for its result."""
    handle = await client.start_workflow(
        workflow_type=workflow_type, workflow_id=name, task_queue=QUEUE, input=list(arguments)
    )
    return await handle.result(timeout=100.0)


# --- local activities on the ordinary profile -----------------------------------------------------------------------


@activity.defn(name="greet")
async def greet(name: str) -> str:
    """Fail the first time, with a heartbeat, then tell."""
    if activity.context().info.attempt_number == 1:
        await activity.context().heartbeat({"phase": "first"})
        raise RuntimeError("transient")
    return f"hello {name}"


@activity.defn(name="refuse")
def refuse() -> None:
    """Fail in a way that the policy does not retry."""
    raise ValueError("never")


@workflow.defn(name="ordinary-local")
class OrdinaryLocal:
    """A side effect, a version, a local call that is retried, and one that fails for good."""

    def run(self, ctx: Any, name: str) -> Steps:
        number = yield ctx.side_effect(lambda: 7)
        version = yield ctx.get_version("change", 1, 3)
        greeting = yield ctx.local_activity("greet", [name], retry_policy={"max_attempts": 2, "backoff_seconds": [0]})
        policy = {"max_attempts": 3, "backoff_seconds": [0, 0], "non_retryable_error_types": ["ValueError"]}
        try:
            yield ctx.local_activity("refuse", [], retry_policy=policy)
        except Exception as error:  # noqa: BLE001 - which error the workflow sees is what the test asks
            return [number, version, greeting, type(error).__name__, str(error)]
        return None


@scenario
async def ordinary_local(client: Client) -> Any:
    """Run local calls that the worker records itself."""
    return await run(client, "ordinary_local", "ordinary-local", "Ada")


# --- timers, conditions, signals --------------------------------------------------------------------------------------


@workflow.defn(name="waiting")
class Waiting:
    """A timer, then a condition that a signal makes true, then one that times out."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.signal("greeted")
    def greeted(self, name: str) -> None:
        """Take a name in."""
        self.names.append(name)

    def run(self, ctx: Any) -> Steps:
        yield ctx.start_timer(1)
        answered = yield ctx.wait_condition(lambda: len(self.names) >= 2, key="two-names")
        late = yield ctx.wait_condition(lambda: len(self.names) >= 9, key="nine-names", timeout=1)
        return [answered, late, self.names]


@scenario
async def waiting(client: Client) -> Any:
    """Signal the workflow twice, once while its timer runs and once while it waits."""
    handle = await client.start_workflow(workflow_type="waiting", workflow_id="waiting", task_queue=QUEUE, input=[])
    await client.signal_workflow("waiting", "greeted", args=["Ada"])
    while "ConditionWaitOpened" not in await event_types(client, "waiting"):  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.05)
    await client.signal_workflow("waiting", "greeted", args=["Grace"])
    return await handle.result(timeout=100.0)


async def event_types(client: Client, name: str) -> list[str]:
    """Give the types of all events of a run so far."""
    run_id = (await client.describe_workflow(name)).run_id
    return [event["event_type"] for event in (await client.get_history(name, str(run_id), page_size=1_000))["events"]]


# --- queued activities ------------------------------------------------------------------------------------------------


@activity.defn(name="charge")
async def charge(amount: int) -> dict[str, int]:
    """Fail the first time, with a heartbeat, then charge."""
    if activity.context().info.attempt_number == 1:
        await activity.context().heartbeat({"phase": "first"})
        raise RuntimeError("transient")
    return {"charged": amount}


@activity.defn(name="refuse-card")
async def refuse_card() -> None:
    """Fail in a way that is not retried."""
    raise ValueError("no such card")


@workflow.defn(name="queued")
class Queued:
    """A queued activity that is retried, and one that fails for good."""

    def run(self, ctx: Any, amount: int) -> Steps:
        charged = yield ctx.schedule_activity(
            "charge",
            [amount],
            retry_policy={"max_attempts": 2, "backoff_seconds": [1]},
            start_to_close_timeout=30,
            schedule_to_close_timeout=90,
            heartbeat_timeout=20,
        )
        try:
            yield ctx.schedule_activity("refuse-card", [])
        except Exception as error:  # noqa: BLE001 - which error the workflow sees is what the test asks
            return [charged, type(error).__name__, str(error)]
        return None


@scenario
async def queued(client: Client) -> Any:
    """Run activities through the queue."""
    return await run(client, "queued", "queued", 12)


# --- parallel groups --------------------------------------------------------------------------------------------------


@workflow.defn(name="parallel")
class Parallel:
    """A nested list of activities and a timer, then a flat one that fails in the middle."""

    def run(self, ctx: Any) -> Steps:
        nested = yield [
            ctx.schedule_activity("double", [1]),
            [ctx.schedule_activity("double", [2]), ctx.start_timer(1)],
            ctx.schedule_activity("double", [3]),
        ]
        try:
            yield [ctx.schedule_activity("double", [4]), ctx.schedule_activity("refuse-card", [])]
        except Exception as error:  # noqa: BLE001 - which error the workflow sees is what the test asks
            return [nested, type(error).__name__, str(error)]
        return None


@activity.defn(name="double")
async def double(number: int) -> int:
    """Double a number, the smaller the later."""
    await asyncio.sleep(0.3 / number)
    return 2 * number


@scenario
async def parallel(client: Client) -> Any:
    """Run lists of calls."""
    return await run(client, "parallel", "parallel")


# --- children and successors ------------------------------------------------------------------------------------------


@workflow.defn(name="family")
class Family:
    """A child that continues as new, one that fails twice and then for good, and a list of two."""

    def run(self, ctx: Any) -> Steps:
        counted = yield ctx.start_child_workflow("counter", [3], parent_close_policy="terminate")
        try:
            yield ctx.start_child_workflow("hopeless", [], retry_policy={"max_attempts": 2, "backoff_seconds": [0]})
        except Exception as error:  # noqa: BLE001 - which error the workflow sees is what the test asks
            failed = [type(error).__name__, str(error)]
        both = yield [ctx.start_child_workflow("counter", [1]), ctx.start_child_workflow("counter", [0])]
        return [counted, failed, both]


@workflow.defn(name="counter")
class Counter:
    """Count down, one run for each number."""

    def run(self, ctx: Any, number: int, seen: list[int] | None = None) -> Steps:
        seen = [*(seen or []), number]
        value = yield ctx.side_effect(lambda: number - 1)
        if number > 0:
            return ctx.continue_as_new(value, seen)
        return seen


@workflow.defn(name="hopeless")
class Hopeless:
    """Fail."""

    def run(self, ctx: Any) -> Steps:
        yield ctx.side_effect(lambda: 1)
        raise ValueError("no hope")


@scenario
async def family(client: Client) -> Any:
    """Run a parent with its children."""
    return await run(client, "family", "family")


@scenario
async def chain(client: Client) -> Any:
    """Run a workflow that continues as new, and wait for the last run of its chain."""
    await client.start_workflow(workflow_type="counter", workflow_id="chain", task_queue=QUEUE, input=[2])
    result = await client.get_workflow_handle("chain").result(timeout=100.0)
    runs = (await client.list_workflow_runs("chain")).runs
    return [result, [one.run_number for one in runs], [one.status for one in runs]]


# --- selections -------------------------------------------------------------------------------------------------------


@workflow.defn(name="choosing")
class Choosing:
    """An activity against a timer, a failure, a list, a condition; losers are cancelled or awaited."""

    def __init__(self) -> None:
        self.opened = False

    @workflow.signal("open")
    def open(self) -> None:
        """Open the gate."""
        self.opened = True

    def run(self, ctx: Any) -> Steps:
        first = yield ctx.select({"quick": ctx.schedule_activity("double", [50]), "late": ctx.start_timer(600)})
        yield first.handles["late"].cancel()
        try:
            yield first.handles["late"]
        except Exception as error:  # noqa: BLE001 - which error the workflow sees is what the test asks
            cancelled = type(error).__name__
        second = yield ctx.select([ctx.schedule_activity("refuse-card", []), ctx.start_timer(600)])
        third = yield ctx.select(
            {
                "list": [ctx.schedule_activity("double", [5]), ctx.schedule_activity("double", [6])],
                "slow": ctx.start_timer(8),
            }
        )
        slow = yield third.handles["slow"]
        fourth = yield ctx.select(
            {"gate": ctx.wait_condition(lambda: self.opened, key="gate"), "child": ctx.start_child_workflow("idle", [])}
        )
        yield fourth.handles["child"].cancel()
        return [
            [first.key, first.value, cancelled],
            [second.key, second.succeeded, type(second.failure).__name__],
            [third.key, third.value, slow],
            [fourth.key, fourth.value, self.opened],
        ]


@workflow.defn(name="idle")
class Idle:
    """Wait for nothing."""

    def run(self, ctx: Any) -> Steps:
        yield ctx.start_timer(600)


@scenario
async def choosing(client: Client) -> Any:
    """Run selections, and open the gate of the last one."""
    handle = await client.start_workflow(workflow_type="choosing", workflow_id="choosing", task_queue=QUEUE, input=[])
    while "ConditionWaitOpened" not in await event_types(client, "choosing"):  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.05)
    await client.signal_workflow("choosing", "open")
    return await handle.result(timeout=100.0)


# --- queries ----------------------------------------------------------------------------------------------------------


@workflow.defn(name="counting")
class Counting:
    """Add up what signals bring, and tell when asked, until told to finish."""

    def __init__(self) -> None:
        self.total = 0
        self.over = False

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        """Add an amount."""
        self.total += amount

    @workflow.signal("finish")
    def finish(self) -> None:
        """Let the run end."""
        self.over = True

    @workflow.update("set")
    def put(self, amount: int) -> list[int]:
        """Set the total, give what it was and what it is."""
        before, self.total = self.total, amount
        return [before, amount]

    @workflow.update_validator("set")
    def check(self, amount: int) -> None:
        """Refuse what would be negative."""
        if amount < 0:
            raise ValueError("below zero")

    @workflow.update("refuse")
    def refuse(self, why: str) -> None:
        """Fail."""
        raise LookupError(why)

    @workflow.query("total")
    def told(self, times: int = 1) -> dict[str, int]:
        """Tell the total."""
        return {"total": self.total * times}

    @workflow.query("broken")
    def broken(self) -> None:
        """Fail."""
        raise ValueError("cannot tell")

    def run(self, ctx: Any) -> Steps:
        yield ctx.start_timer(0)
        yield ctx.wait_condition(lambda: self.over, key="over")
        return self.total


async def refusal(asking: Awaitable[Any]) -> list[str]:
    """Give what a call raises."""
    try:
        return ["answered", str(await asking)]
    except Exception as error:  # noqa: BLE001 - which error the client sees is what the test asks
        return [type(error).__name__, str(error)]


@scenario
async def counting(client: Client) -> Any:
    """Ask a run that waits, ask what it cannot tell, and ask it again when it has ended."""
    handle = await client.start_workflow(workflow_type="counting", workflow_id="counting", task_queue=QUEUE, input=[])
    while "ConditionWaitOpened" not in await event_types(client, "counting"):  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.05)
    await client.signal_workflow("counting", "add", args=[5])
    answers = [await handle.query("total"), await handle.query("total", [3])]
    refused = [await refusal(handle.query("nothing")), await refusal(handle.query("broken"))]
    await client.signal_workflow("counting", "finish")
    result = await handle.result(timeout=100.0)
    answers.append(await handle.query("total"))
    return [[answer["result"] for answer in answers], refused, result]


@scenario
async def updated(client: Client) -> Any:
    """Update a run that waits: one answer waited for, one only accepted, one repeated, one that fails."""
    handle = await client.start_workflow(workflow_type="counting", workflow_id="updated", task_queue=QUEUE, input=[])
    first = await client.update_workflow("updated", "set", args=[3], wait_for="completed", wait_timeout_seconds=60)
    second = await client.update_workflow("updated", "set", args=[4], request_id="mine")
    again = await client.update_workflow(
        "updated", "set", args=[4], request_id="mine", wait_for="completed", wait_timeout_seconds=60
    )
    failing = handle.update("refuse", ["no room"], wait_for="completed", wait_timeout_seconds=60)
    refused = [
        await refusal(failing),
        await refusal(handle.update("nothing")),
        await refusal(handle.update("set", [-1])),
    ]
    total = await handle.query("total")
    await client.signal_workflow("updated", "finish")
    return {
        "first": [first["update_status"], first["result"]],
        "second": second["update_status"],
        "again": [again["update_status"], again["update_id"] == second["update_id"], again["retained"]],
        "refused": refused,
        "total": total["result"],
        "result": await handle.result(timeout=100.0),
    }


WORKFLOWS: list[type] = [OrdinaryLocal, Waiting, Queued, Parallel, Family, Counter, Hopeless, Choosing, Idle, Counting]
ACTIVITIES: list[Callable[..., Any]] = [greet, refuse, charge, refuse_card, double]


async def observe(client: Client, name: str) -> dict[str, Any]:
    """Run one scenario and read what is left of it."""
    seen: dict[str, Any] = {}
    try:
        seen["result"] = await SCENARIOS[name](client)
    except Exception as error:  # noqa: BLE001 - the test judges it
        seen["error"] = [type(error).__name__, str(error)]
        seen["traceback"] = traceback.format_exc()
    description = await client.describe_workflow(name)
    seen["status"] = description.status
    history = await client.get_history(name, str(description.run_id), page_size=1_000)
    seen["events"] = [event["event_type"] for event in history["events"]]
    seen["history"] = history["events"]
    return seen


async def main(url: str) -> None:
    """Run every scenario beside the others and print what came of them."""
    async with Client(url) as client:
        worker = Worker(client, task_queue=QUEUE, workflows=WORKFLOWS, activities=ACTIVITIES, poll_timeout=5.0)
        running = asyncio.create_task(worker.run())
        seen = await asyncio.gather(*(observe(client, name) for name in SCENARIOS))
        await worker.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        print(json.dumps(dict(zip(SCENARIOS, seen, strict=True))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
