"""The real worker, the real supervisor and the real embedded server together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from proctor.client import Client
from proctor.errors import NegotiationRefused, ServerRefused, ServerUnreachable, WorkflowFailed
from proctor.server import ServerOptions, serve
from proctor.worker import Worker
from proctor_supervisor import SupervisorOptions
from running.workflows import Chain, One
from running.worlds import FAST_STOPS, World, is_alive, pid_from, world


async def test_a_chain_of_local_activities_completes_with_a_checkpoint_between() -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow("chain", task_queue="q")

        assert await handle.result() == ["seed", "two"]

        kinds = [event["event_type"] for event in await handle.history()]
        assert kinds.index("SideEffectRecorded") < kinds.index("ActivityScheduled")
        assert kinds.count("ActivityCompleted") == 2
        assert kinds[-1] == "WorkflowCompleted"


async def test_a_handler_runs_in_another_process_that_holds_neither_token_nor_worker_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DURABLE_WORKFLOW_AUTH_TOKEN", "not-for-children")
    async with world() as here:
        here.start_worker()

        seen = await here.run("where")

    assert seen["pid"] != os.getpid()
    assert seen["attempt"] == 1
    assert seen["token_seen"] is False
    assert seen["loaded"] == []


async def test_a_handler_that_ignores_everything_is_killed_at_its_timeout_and_retried(tmp_path: Path) -> None:
    async with world() as here:
        here.start_worker()

        result = await here.run(
            "stuck_at_first",
            str(tmp_path / "mark"),
            start_to_close_timeout=1,
            retry_policy={"max_attempts": 2, "backoff_seconds": [0], "non_retryable_error_types": []},
        )

        killed, completed = here.attempts()
        assert result == {"attempt": 2, "seen": {"offset": 1}}
        assert (killed["outcome"], killed["timeout_kind"], killed["published"]) == ("timed_out", "start_to_close", True)
        assert killed["stop"]["pid"] == int((tmp_path / "mark").read_text())
        assert not is_alive(killed["stop"]["pid"])
        assert completed["outcome"] == "completed"


async def test_a_missing_heartbeat_stops_the_handler_and_fails_the_run(tmp_path: Path) -> None:
    async with world() as here:
        here.start_worker()

        with pytest.raises(WorkflowFailed) as caught:
            await here.run("block", str(tmp_path / "mark"), heartbeat_timeout=1)

        (attempt,) = here.attempts()
        assert caught.value.status == "failed"
        assert (attempt["outcome"], attempt["timeout_kind"]) == ("timed_out", "heartbeat")
        assert not is_alive(attempt["stop"]["pid"])


@pytest.mark.parametrize(
    ("activity", "told"),
    [("break", "no such page"), ("unencodable", "set"), ("die", "7"), ("missing", "missing")],
)
async def test_a_failing_handler_fails_the_run_with_its_reason(activity: str, told: str) -> None:
    async with world() as here:
        here.start_worker()

        with pytest.raises(WorkflowFailed, match=told):
            await here.run(activity)

        assert here.attempts()[0]["outcome"] == "failed"


@pytest.mark.parametrize("policy", ["try_cancel", "wait_cancellation_completed"])
async def test_a_cancelled_run_stops_its_blocking_handler_with_a_receipt(pipe: Path, policy: str) -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow(
            "one", ["block", [str(pipe)], {"cancellation_policy": policy}], task_queue="q"
        )
        pid = await pid_from(pipe)

        await here.client.request_cancellation(handle.workflow_id)
        with pytest.raises(WorkflowFailed) as caught:
            await handle.result()

        kinds = [event["event_type"] for event in await handle.history()]
        assert caught.value.status == "cancelled"
        assert not is_alive(pid)
        assert kinds.index("ActivityCancelled") < kinds.index("ActivityCancellationAcknowledged")
        assert kinds.index("ActivityCancellationAcknowledged") < kinds.index("CooperativeCancellationDelivered")
        assert here.attempts()[0]["outcome"] == "cancelled"


async def test_a_run_cancelled_before_a_worker_came_ends_without_an_attempt() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("one", ["echo", [1], {}], task_queue="q")
        await here.client.request_cancellation(handle.workflow_id)

        here.start_worker()
        with pytest.raises(WorkflowFailed) as caught:
            await handle.result()

        kinds = [event["event_type"] for event in await handle.history()]
        assert caught.value.status == "cancelled"
        assert "ActivityStarted" not in kinds
        assert here.attempts() == []


async def test_a_run_closed_by_force_stops_its_handler_and_publishes_nothing(pipe: Path) -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow("one", ["block", [str(pipe)], {}], task_queue="q")
        pid = await pid_from(pipe)

        await here.client.cancel(handle.workflow_id)
        await here.wait_for("attempt_ended")

        (attempt,) = here.attempts()
        assert not is_alive(pid)
        assert (attempt["outcome"], attempt["published"]) == ("abandoned", False)


async def test_a_cancelled_worker_leaves_no_child_and_no_registration(pipe: Path) -> None:
    async with world() as here:
        here.start_worker()
        await here.client.start_workflow("one", ["block", [str(pipe)], {}], task_queue="q")
        pid = await pid_from(pipe)

        here.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(10):
            await here.wait_for("deregistered")

        assert not is_alive(pid)
        assert here.attempts()[0]["stop"]["reason"] == "shutdown"


async def test_a_draining_worker_lets_its_attempt_end(pipe: Path) -> None:
    async with world() as here:
        worker = here.start_worker()
        handle = await here.client.start_workflow(
            "one", ["beat_until_told", [str(pipe)], {"start_to_close_timeout": 1}], task_queue="q"
        )
        await pid_from(pipe)

        worker.drain()
        await here.stopped.wait()

        assert here.attempts()[0]["outcome"] == "timed_out"
        with pytest.raises(WorkflowFailed):
            await handle.result()
        assert here.events[-1]["event"] == "deregistered"


async def test_an_older_server_is_refused_before_anything_is_registered() -> None:
    async with world(protocol="1.19") as here:
        worker = Worker(Client(here.url), task_queue="q", workflows=[One])

        with pytest.raises(NegotiationRefused) as caught:
            await worker.run()

        assert any("worker_protocol.version" in name for name in caught.value.missing)


async def test_a_wrong_token_is_refused_and_never_shown(capfd: pytest.CaptureFixture[str]) -> None:
    async with world(worker_token="right-token") as here:
        worker = Worker(Client(here.url, token="wrong-secret"), task_queue="q", workflows=[One])

        with pytest.raises(ServerRefused) as caught:
            await worker.run()

    shown = "".join(capfd.readouterr())
    assert caught.value.status in (401, 403)
    assert "wrong-secret" not in str(caught.value) + repr(caught.value.body) + shown


async def test_an_absent_server_is_named_in_the_error(free_port: Callable[[], int]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    worker = Worker(Client(url), task_queue="q", workflows=[One])

    with pytest.raises(ServerUnreachable, match=url):
        await worker.run()


async def test_a_killed_worker_leaves_no_child_and_its_attempt_is_recovered_by_another(
    pipe: Path, tmp_path: Path
) -> None:
    async with world(workflow_task_lease_seconds=2.0) as here:
        lost = await trio.lowlevel.open_process(
            [sys.executable, "-m", "running.worker_program", here.url, "lost"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.DEVNULL,
        )
        handle = await here.client.start_workflow(
            "one",
            [
                "stuck_at_first",
                [str(pipe)],
                {"retry_policy": {"max_attempts": 2, "backoff_seconds": [0], "non_retryable_error_types": []}},
            ],
            task_queue="q",
        )
        pid = await pid_from(pipe)

        lost.kill()
        await lost.wait()
        here.start_worker()
        result = await handle.result()

        kinds = [event["event_type"] for event in await handle.history()]
        assert result["attempt"] == 2
        assert not is_alive(pid)
        assert kinds.count("ActivityStarted") == 2
        assert kinds.count("ActivityRetryScheduled") == 1
        assert "ActivityCancellationAcknowledged" not in kinds


async def test_a_worker_whose_id_another_process_took_stops_its_child_and_publishes_nothing(pipe: Path) -> None:
    async with world() as here:
        first = await trio.lowlevel.open_process(
            [sys.executable, "-m", "running.worker_program", here.url, "same"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert first.stderr is not None
        handle = await here.client.start_workflow("one", ["block", [str(pipe)], {}], task_queue="q")
        pid = await pid_from(pipe)

        # Under 1 s of renewals the first worker finds its claim refused, looks at its registration, and stops.
        here.start_worker(worker_id="same", workflows=[Chain])
        told = b"".join([chunk async for chunk in first.stderr])
        await first.wait()

        assert first.returncode == 1
        assert b"another worker has registered as 'same'" in told
        assert not is_alive(pid)
        assert {event["event_type"] for event in await handle.history()} <= {
            "StartAccepted",
            "WorkflowStarted",
            "ActivityScheduled",
            "ActivityStarted",
        }
        await first.stderr.aclose()


async def test_a_frozen_worker_loses_its_child_in_time_and_publishes_nothing_when_it_wakes(pipe: Path) -> None:
    lease = 2.0
    async with world(workflow_task_lease_seconds=lease) as here:
        frozen = await trio.lowlevel.open_process(
            [sys.executable, "-m", "running.worker_program", here.url, "frozen"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.DEVNULL,
        )
        retry = {"max_attempts": 2, "backoff_seconds": [0], "non_retryable_error_types": []}
        handle = await here.client.start_workflow(
            "one", ["stuck_at_first", [str(pipe)], {"retry_policy": retry}], task_queue="q"
        )
        pid = await pid_from(pipe)
        child = os.pidfd_open(pid)

        frozen.send_signal(signal.SIGSTOP)
        stopped_at = trio.current_time()
        await trio.lowlevel.wait_readable(child)
        os.close(child)

        # Nobody may run the second attempt before the lease is over; by then the first one must be gone.
        assert trio.current_time() - stopped_at < lease + 0.5
        other = here.start_worker()
        result = await handle.result()
        other.drain()
        await here.stopped.wait()
        # The woken worker has one slot: when it has done another run, it is through with the old attempt.
        frozen.send_signal(signal.SIGCONT)
        assert await here.run("echo", "awake") == "awake"
        frozen.terminate()
        await frozen.wait()
        kinds = [event["event_type"] for event in await handle.history()]
        assert result["attempt"] == 2
        assert kinds.count("ActivityCompleted") == 1
        assert kinds.count("ActivityStarted") == 2


async def test_as_many_runs_as_children_are_worked_on_at_once(tmp_path: Path) -> None:
    async with world() as here:
        here.start_worker(supervisor=SupervisorOptions(children=2, stop=FAST_STOPS))
        pipes = [tmp_path / "one", tmp_path / "two"]
        for path in pipes:
            os.mkfifo(path)
            await here.client.start_workflow("one", ["block", [str(path)], {}], task_queue="q")

        pids = [await pid_from(path) for path in pipes]

        assert len(set(pids)) == 2
        assert all(is_alive(pid) for pid in pids)


async def test_two_workers_share_a_queue_and_every_run_is_done_once() -> None:
    async with world() as here:
        here.start_worker(worker_id="first")
        here.start_worker(worker_id="second")
        handles = [await here.client.start_workflow("chain", task_queue="q") for _ in range(6)]

        results = [await handle.result() for handle in handles]

        assert results == [["seed", "two"]] * 6
        for handle in handles:
            kinds = [event["event_type"] for event in await handle.history()]
            assert kinds.count("ActivityStarted") == kinds.count("ActivityCompleted") == 2


async def test_an_idle_worker_drains_at_once() -> None:
    async with world() as here:
        worker = here.start_worker()
        await here.wait_for("registered")

        with trio.fail_after(5):
            worker.drain()
            await here.stopped.wait()

        assert here.events[-1]["event"] == "deregistered"


async def test_a_server_that_restarts_within_the_lease_costs_a_running_attempt_nothing(
    pipe: Path, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    options = ServerOptions(database=tmp_path / "server.db", port=free_port())

    async def live(*, task_status: trio.TaskStatus[str]) -> None:
        with life:
            await serve(options, task_status=task_status)
        ended.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            life, ended = trio.CancelScope(), trio.Event()
            url = await nursery.start(live)
            async with Client(url) as client:
                here = World(url, client, nursery)
                worker = here.start_worker()
                handle = await client.start_workflow("one", ["tell_and_wait", [str(pipe), 2.0], {}], task_queue="q")
                pid = await pid_from(pipe)

                life.cancel()
                await ended.wait()
                life, ended = trio.CancelScope(), trio.Event()
                await nursery.start(live)

                assert await handle.result() == pid
                assert len(here.attempts()) == 1
                worker.drain()
                await here.stopped.wait()
            nursery.cancel_scope.cancel()
