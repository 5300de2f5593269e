"""Workers and servers of different protocol versions: they agree as transport.md §6 and §7 say, or nothing happens."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio

from faults import work
from faults.rig import STOPS, Rig, is_alive, pid_from, pipe_in, rig
from machine import alone
from proctor import Client
from proctor.errors import NegotiationRefused
from proctor.worker import Worker
from proctor_supervisor import SupervisorOptions

TESTS = Path(__file__).resolve().parents[1]
PREPARED = ("cooperative_cancellation", "prepared_local_activities")

# profile, server -> whether they agree
OURS = {
    ("supervised", "1.18"): False,
    ("supervised", "1.19"): False,
    ("supervised", "1.20"): True,
    ("ordinary", "1.18"): True,
    ("ordinary", "1.19"): True,
    ("ordinary", "1.20"): True,
}
# what the official SDK asks for, its capabilities, server -> whether they agree
OFFICIAL = {
    ("1.20", (), "1.18"): False,
    ("1.20", (), "1.19"): False,
    ("1.20", (), "1.20"): True,
    ("1.19", (), "1.18"): False,
    ("1.19", (), "1.19"): True,
    ("1.19", (), "1.20"): True,
    ("1.20", PREPARED, "1.20"): True,
    ("1.19", PREPARED, "1.19"): False,
    ("1.19", PREPARED, "1.20"): False,
}


def named(rows: object) -> str:
    return "-".join(rows) if isinstance(rows, tuple) and rows else str(rows or "plain")


@pytest.mark.parametrize(("profile", "protocol"), OURS, ids=named)
async def test_our_worker_agrees_or_does_not_register(profile: str, protocol: str) -> None:
    async with rig(protocol=protocol) as here:
        if OURS[profile, protocol]:
            await here.start_worker(profile=profile)
            await one_run(here, prepared=profile == "supervised")
            return
        options = SupervisorOptions(children=1, stop=STOPS)
        worker = Worker(
            Client(here.proxy.url), task_queue="q", workflows=work.WORKFLOWS, activities=work.ACTIVITIES,
            profile=profile, supervisor=options,
        )  # fmt: skip
        with pytest.raises(NegotiationRefused) as refused:
            await worker.run()

        assert any("version" in missing for missing in refused.value.missing)
        asked_for_nothing_but_discovery(here)


@pytest.mark.parametrize(("asked", "capabilities", "protocol"), OFFICIAL, ids=named)
async def test_the_official_worker_agrees_or_does_not_register(
    asked: str, capabilities: tuple[str, ...], protocol: str
) -> None:
    agrees = OFFICIAL[asked, capabilities, protocol]
    # The SDK gives the processes of prepared activities 5 s to start.
    with alone() if agrees and capabilities else nullcontext():
        await official_worker_agrees_or_not(asked, capabilities, protocol, agrees=agrees)


async def official_worker_agrees_or_not(
    asked: str, capabilities: tuple[str, ...], protocol: str, *, agrees: bool
) -> None:
    async with rig(protocol=protocol, workflow_task_lease_seconds=30.0) as here, trio.open_nursery() as nursery:
        process = await start_official(here, nursery, asked, capabilities, agrees=agrees)
        if agrees:
            await one_run(here, prepared=bool(capabilities))
            assert process.stdin is not None
            await process.stdin.aclose()
        else:
            with trio.fail_after(30):
                await here.proxy.wait_for(lambda seen: seen.operation == "cluster_info" and seen.ended is not None)
                assert process.stdin is not None
                await process.wait()
            asked_for_nothing_but_discovery(here)


async def test_a_mixed_fleet_ends_every_run_once_and_prepared_calls_stay_with_those_that_can() -> None:
    async with rig(workflow_task_lease_seconds=30.0) as here, trio.open_nursery() as nursery:
        await here.start_worker("supervised")
        await here.start_worker("ordinary", profile="ordinary")
        official = await start_official(here, nursery, "1.19", (), agrees=True)
        await here.proxy.wait_for(lambda seen: seen.operation == "register_worker" and seen.worker == "official")

        handles = [await here.start("local", "work", "value") for _ in range(12)]
        for handle in handles:
            assert await handle.result() == "value"
            await here.check(handle)
        prepared = {seen.worker for seen in here.proxy.exchanges if seen.operation in ("prepare", "outcome", "recover")}
        assert prepared <= {"supervised"}
        assert all(seen.given != 400 for seen in here.proxy.exchanges)
        assert official.stdin is not None
        await official.stdin.aclose()


async def test_a_supervised_worker_ends_when_its_server_comes_back_as_an_older_one(tmp_path: Path) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(database=tmp_path / "server.db", workflow_task_lease_seconds=30.0) as here:
        refused: list[NegotiationRefused] = []

        async def until_refused() -> None:
            with pytest.raises(NegotiationRefused) as caught:
                await worker.run()
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            options = SupervisorOptions(children=1, stop=STOPS, preload=["faults.work"])
            worker = Worker(
                Client(here.proxy.url), task_queue="q", workflows=work.WORKFLOWS, activities=work.ACTIVITIES,
                worker_id="first", supervisor=options,
            )  # fmt: skip
            nursery.start_soon(until_refused)
            handle = await here.start("local", "block_at_first", str(pipe))
            pid = await pid_from(pipe)
            await here.restart(protocol="1.19")
            restarted_at = trio.current_time()

        assert [any("version" in missing for missing in one.missing) for one in refused] == [True]
        assert not is_alive(pid)
        said = [seen for seen in here.proxy.exchanges if seen.began > restarted_at and seen.worker == "first"]
        assert not {seen.operation for seen in said} & {"register_worker", "outcome", "complete_workflow_task"}
        await here.restart(protocol="1.20")
        await here.server.expire_lease(worker_id="first")
        await here.start_worker("second")
        assert await handle.result() == 2
        await here.check(handle)


@pytest.mark.parametrize(("before", "after"), [("1.20", "1.18"), ("1.19", "1.18"), ("1.18", "1.20")])
@pytest.mark.parametrize("kind", ["local", "queued"])
async def test_an_ordinary_worker_speaks_what_its_restarted_server_understands(
    kind: str, before: str, after: str, tmp_path: Path
) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(database=tmp_path / "server.db", workflow_task_lease_seconds=3.0, protocol=before) as here:
        await here.start_worker(profile="ordinary", queued_activities=1)
        handle = await here.start(kind, "tell_and_work", str(pipe))
        await pid_from(pipe)
        await here.restart(protocol=after)
        if after == "1.18":
            await pid_from(pipe)  # what the old agreement began is worked on again
        assert await handle.result() == str(pipe)
        await here.check(handle)
        again = await here.start(kind, "work", "value")
        assert await again.result() == "value"
        await here.check(again)
        registered = [seen for seen in here.proxy.exchanges if seen.operation == "register_worker"]
        assert [seen.given for seen in registered] == [201] * (2 if after == "1.18" else 1)


async def one_run(here: Rig, *, prepared: bool) -> None:
    handle = await here.start("local", "work", "value")
    assert await handle.result() == "value"
    await here.check(handle)
    assert any(seen.operation == "prepare" for seen in here.proxy.exchanges) == prepared
    assert [seen.given for seen in here.proxy.exchanges if seen.operation == "register_worker"] == [201]


def asked_for_nothing_but_discovery(here: Rig) -> None:
    assert {seen.operation for seen in here.proxy.exchanges} == {"cluster_info"}


async def start_official(
    here: Rig, nursery: trio.Nursery, asked: str, capabilities: tuple[str, ...], *, agrees: bool
) -> trio.Process:
    """Start the official worker; when it ends, see that it ended as it should."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "DURABLE_WORKFLOW_WORKER_PROTOCOL_VERSION": asked,
    }

    async def run(task_status: trio.TaskStatus[trio.Process]) -> None:
        done = await trio.run_process(
            [sys.executable, str(TESTS / "faults" / "official_program.py"), here.proxy.url, "q", *capabilities],
            stdin=subprocess.PIPE,
            capture_stderr=True,
            check=False,
            env=environment,
            task_status=task_status,
        )
        assert done.returncode == (0 if agrees else 3), done.stderr.decode()

    process: trio.Process = await nursery.start(run)
    return process
