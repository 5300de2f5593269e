"""Handlers that meddle with their own process get their result through, or a typed failure; nobody else notices."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking, meddling, traces
from processes import state
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Failed,
    Heartbeat,
    Limits,
    Outcome,
    Stopped,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


async def _run(supervisor: Supervisor, handler: Callable[..., Any], *args: object, **fields: Any) -> Outcome:
    with trio.fail_after(20):
        return await supervisor.run(Task(handler=handler, payload=json.dumps([args, {}]).encode(), **fields))


@pytest.mark.parametrize(
    ("handler", "length"),
    [
        (meddling.use_up_descriptors, 400_000),
        (meddling.forbid_descriptors, 4),
        (meddling.forbid_file_sizes, 400_000),
        (meddling.replace_streams, 8),
        (meddling.replace_exit, 8),
        (meddling.shrink_stack_and_trace, 5),
        (meddling.stop_instead_of_exiting, 9),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_the_result_comes_through(supervisor: Supervisor, handler: Callable[..., Any], length: int) -> None:
    outcome = await _run(supervisor, handler)

    assert len(_value(outcome)) == length
    assert state(outcome.pid) == ""


async def test_a_forgotten_alarm_does_not_hit_the_delivery(supervisor: Supervisor) -> None:
    outcome = await _run(supervisor, meddling.leave_a_raising_signal_handler, codec="handlers.meddling:ALARMING")

    assert _value(outcome) == "in time"


@pytest.mark.parametrize("handler", [meddling.close_everything, meddling.delete_builtins])
async def test_where_no_result_can_be_told_the_attempt_has_failed(
    supervisor: Supervisor, handler: Callable[..., Any]
) -> None:
    outcome = await _run(supervisor, handler)

    assert isinstance(outcome, Failed)
    assert outcome.kind == "exited"


async def test_files_in_the_place_of_the_channels_are_not_written_to(supervisor: Supervisor, tmp_path: Path) -> None:
    outcome = await _run(supervisor, meddling.replace_channels_by_files, str(tmp_path))

    assert isinstance(outcome, Failed)
    assert outcome.kind == "exited"
    assert [(tmp_path / str(number)).read_text() for number in (0, 2, 3, 4, 5)] == [""] * 5
    assert (tmp_path / "1").read_text() == "into a file, as asked\n"


async def test_a_file_in_the_place_of_the_stack_pipe_is_not_written_to(supervisor: Supervisor, tmp_path: Path) -> None:
    control = AttemptControl()
    with trio.fail_after(20):
        outcome = await supervisor.run(
            Task.call(meddling.replace_channels_by_files_and_stay, str(tmp_path)),
            control=control,
            on_output=lambda _line: control.request_stop(StopReason.CANCELLED),
        )

    assert isinstance(outcome, Stopped)
    assert outcome.proof.last_stack == ""
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("3456", "")


async def test_an_attempt_that_denies_to_have_begun_runs_once(supervisor: Supervisor, tmp_path: Path) -> None:
    outcome = await _run(supervisor, meddling.forget_having_begun, str(tmp_path / "ran"))

    assert isinstance(outcome, Failed)
    assert outcome.kind == "protocol"
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_a_connection_in_the_place_of_the_task_socket_is_not_spoken_on(supervisor: Supervisor) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,  # a socket's path has room for no long one
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(f"{folder}/s")
        server.listen()
        outcome = await _run(supervisor, meddling.replace_task_socket_by_a_socket, f"{folder}/s")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b""

    assert isinstance(outcome, Failed)
    assert outcome.kind == "exited"


async def test_without_its_pipe_the_newest_heartbeat_comes_beside_the_outcome(supervisor: Supervisor) -> None:
    beats: list[Heartbeat] = []
    with trio.fail_after(20):
        outcome = await supervisor.run(Task.call(meddling.close_heartbeat_pipe), on_heartbeat=beats.append)

    assert _value(outcome) == "done"
    assert [beat.payload for beat in beats] == [b"first", b"third"]
    assert (outcome.heartbeats, outcome.heartbeats_dropped) == (3, 1)


async def test_a_failure_for_want_of_memory_can_still_be_told(supervisor: Supervisor) -> None:
    outcome = await _run(supervisor, meddling.hold_all_memory, limits=Limits(address_space_bytes=16 << 20))

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.failure.type_name) == ("raised", "MemoryError")


async def test_blocked_signals_do_not_hinder_a_stop(supervisor: Supervisor) -> None:
    control = AttemptControl()
    with trio.fail_after(20):
        outcome = await supervisor.run(
            Task.call(meddling.block_all_signals),
            control=control,
            on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED),
        )

    assert isinstance(outcome, Stopped)
    assert (outcome.proof.signal, outcome.proof.sent_by_us) == (signal.SIGKILL, True)


@pytest.mark.parametrize(
    ("handler", "number"), [(meddling.segfault_for_real, signal.SIGSEGV), (meddling.abort, signal.SIGABRT)]
)
async def test_a_death_in_c_code_is_told_with_its_signal(
    supervisor: Supervisor, handler: Callable[..., Any], number: int
) -> None:
    outcome = await _run(supervisor, handler)

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.signal, outcome.sent_by_us) == ("signalled", number, False)
    assert outcome.rusage is not None


@pytest.mark.parametrize(
    "handler", [meddling.flush_endless_heartbeats, meddling.send_many_descriptors, meddling.flush_a_huge_heartbeat]
)
async def test_a_flood_of_the_task_socket_ends_the_attempt_and_holds_nobody_up(
    supervisor: Supervisor, handler: Callable[..., Any]
) -> None:
    outcome = await _run(supervisor, handler)

    assert isinstance(outcome, Failed)
    assert outcome.kind == "protocol"


async def test_noise_during_a_stop_makes_no_failure_of_it(supervisor: Supervisor) -> None:
    control = AttemptControl()
    with trio.fail_after(20):
        outcome = await supervisor.run(
            Task.call(meddling.answer_notice_with_noise),
            control=control,
            on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED, "enough"),
        )

    assert isinstance(outcome, Stopped)
    assert (outcome.reason, outcome.proof.detail) == (StopReason.CANCELLED, "enough")


async def test_a_flood_of_the_stack_pipe_does_not_hold_the_stop_up(supervisor: Supervisor) -> None:
    control = AttemptControl()
    with trio.fail_after(20):
        outcome = await supervisor.run(
            Task.call(meddling.flood_stack_pipe),
            control=control,
            on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED),
        )

    assert isinstance(outcome, Stopped)
    assert len(outcome.proof.last_stack) <= 16 * 1024


async def test_a_kept_process_that_writes_without_end_holds_nobody_up(supervisor: Supervisor) -> None:
    outcome = await _run(supervisor, meddling.keep_a_chatterbox, descendants="keep")

    with contextlib.suppress(ProcessLookupError):
        os.kill(_value(outcome), signal.SIGKILL)
    assert len(outcome.output.stdout) < 70_000


async def test_a_child_can_keep_nothing_that_is_not_below_it(supervisor: Supervisor, tmp_path: Path) -> None:
    """The list of kept processes lies in memory that the handler can write to."""
    pids: list[int] = []
    outcomes: list[Outcome] = []

    async def neighbour(running: trio.Event) -> None:
        def on_heartbeat(beat: Heartbeat) -> None:
            pids.append(int(beat.payload))
            running.set()

        task = Task.call(meddling.start_and_return_later, f"{tmp_path}/go")
        outcomes.append(await supervisor.run(task, on_heartbeat=on_heartbeat))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            running = trio.Event()
            nursery.start_soon(neighbour, running)
            await running.wait()
            claimed = await _run(supervisor, meddling.claim_pids_as_kept, pids, descendants="keep")
            (tmp_path / "go").touch()

    assert isinstance(claimed, Completed)
    assert isinstance(outcomes[0], Completed)
    assert [one.pid for one in outcomes[0].descendants] == pids
    assert state(pids[0]) == ""


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "supervisor_died", "message": "x" * 1_000_000, "causes": [{}] * 3},
        {"kind": "start_failed", "message": "\udcff", "traceback": "y" * 1_000_000, "causes": []},
        {"kind": "raised", "message": 1, "causes": [{"type_name": "T", "module": "m", "message": "c"}] * 1000},
    ],
)
async def test_forged_facts_are_bounded_and_claim_no_others_failure(supervisor: Supervisor, facts: Any) -> None:
    whole = {"type_name": "T", "module": "m", "traceback": "", "cancelled": 1, "non_retryable": 1} | facts
    outcome = await _run(supervisor, meddling.forge_failure, whole)

    assert isinstance(outcome, Failed)
    assert outcome.kind in ("raised", "protocol")
    assert len(outcome.failure.message) <= 65536
    assert len(outcome.failure.traceback) <= 65536
    assert len(outcome.failure.causes) <= 32
    outcome.failure.message.encode()


@pytest.mark.parametrize(
    "handler",
    [
        meddling.leave_signals_blocked,
        meddling.leave_raise_signal_ignored,
        meddling.leave_a_raising_signal_handler,
        traces.leave_timer,
    ],
)
async def test_a_reused_child_that_was_meddled_with_is_retired(handler: Callable[..., Any]) -> None:
    async with open_supervisor(SupervisorOptions(children=1, isolation="reuse")) as reusing:
        first = (await _run(reusing, blocking.pid)).pid

        assert (await _run(reusing, handler)).pid == first
        assert (await _run(reusing, blocking.pid)).pid != first


async def test_a_reused_child_that_lost_its_socket_fails_its_attempt_and_holds_nobody_up() -> None:
    async with open_supervisor(SupervisorOptions(children=1, isolation="reuse")) as reusing:
        outcome = await _run(reusing, meddling.replace_task_socket_by_a_pair)

        assert isinstance(outcome, Failed)
        assert outcome.kind == "exited"
        assert _value(await _run(reusing, blocking.echo, 1)) == 1


async def test_memory_shared_with_an_execd_child_cannot_be_taken_away() -> None:
    options = SupervisorOptions(children=1, preload=["handlers.opens_socket"])
    async with open_supervisor(options) as supervisor:
        assert not supervisor.forks
        zygote = supervisor.pid

        assert _value(await _run(supervisor, meddling.shrink_shared_memory)) == ["refused"]
        assert _value(await _run(supervisor, blocking.echo, 1)) == 1
        assert supervisor.pid == zygote
