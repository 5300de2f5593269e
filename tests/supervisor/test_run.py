"""What an attempt that ends by itself comes to."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking, coroutines, hostile
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Failed,
    Heartbeat,
    Outcome,
    OutputLine,
    StartRefused,
    Supervisor,
    SupervisorClosed,
    SupervisorOptions,
    Task,
    TaskRefused,
    open_supervisor,
)


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


def _failed(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


async def test_a_result_comes_back_and_the_process_is_gone(supervisor: Supervisor) -> None:
    outcome = await supervisor.run(Task.call(blocking.pid))

    assert _value(outcome) == outcome.pid
    assert not Path(f"/proc/{outcome.pid}").exists()
    assert outcome.rusage is not None
    assert outcome.rusage.max_rss_bytes > 0


async def test_each_attempt_has_a_process_of_its_own(supervisor: Supervisor) -> None:
    pids = {_value(await supervisor.run(Task.call(blocking.pid))) for _ in range(5)}

    assert len(pids) == 5
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("handler", "arguments", "expected"),
    [
        ("handlers.blocking:echo", (1,), 1),
        (blocking.echo, ([None, True, 1.5, "ü"],), [None, True, 1.5, "ü"]),
        (lambda value: value + 1, (1,), 2),
        (functools.partial(coroutines.add_async, 1), (2,), 3),
        (blocking.Carrier(21).double, (), 42),
        (coroutines.add_async, (1, 2), 3),
    ],
    ids=["path", "function", "lambda", "partial", "bound method", "async"],
)
async def test_every_kind_of_handler_runs(
    supervisor: Supervisor, handler: str | Callable[..., Any], arguments: tuple[Any, ...], expected: Any
) -> None:
    assert _value(await supervisor.run(Task.call(handler, *arguments))) == expected


async def test_output_by_any_way_is_captured_and_harms_nothing(supervisor: Supervisor) -> None:
    lines: list[OutputLine] = []
    said = await supervisor.run(
        Task(handler=blocking.say, payload=b'[["to out","to err"],{}]', attempt_id="a-1"), on_output=lines.append
    )
    raw = await supervisor.run(Task.call(blocking.say_by_descriptor, "raw"))
    nested = await supervisor.run(Task.call(blocking.say_in_subprocess, "nested"))

    assert (said.output.stdout, said.output.stderr) == ("to out\n", "to err\n")
    # The two streams are two pipes: there is no order between them.
    assert set(lines) == {OutputLine("a-1", "stdout", "to out"), OutputLine("a-1", "stderr", "to err")}
    assert raw.output.stdout == "raw"
    assert (nested.output.stdout, _value(nested)) == ("nested\n", 0)


async def test_standard_input_is_empty(supervisor: Supervisor) -> None:
    assert _value(await supervisor.run(Task.call(blocking.read_stdin))) == ""


async def test_a_flood_of_output_is_bounded_and_counted(supervisor: Supervisor) -> None:
    outcome = await supervisor.run(Task.call(hostile.chatter, 3))

    assert _value(outcome) == "said"
    assert len(outcome.output.stdout) < 80 * 1024
    assert outcome.output.dropped == 3 * 1024 * 1024 - 64 * 1024


async def test_a_flood_of_lines_costs_a_bounded_number_of_callbacks_and_each_line_is_counted(
    supervisor: Supervisor,
) -> None:
    lines: list[str] = []
    await supervisor.run(Task.call(hostile.say_nothing_often, 4), on_output=lambda line: lines.append(line.text))

    left_out = [int(text.split()[0][1:]) for text in lines if text.endswith("lines left out]")]
    assert len(lines) - len(left_out) + sum(left_out) == 4 * 1024 * 1024
    assert len(lines) < 100_000


async def test_heartbeats_arrive_newest_last_and_none_is_lost_from_the_count(supervisor: Supervisor) -> None:
    beats: list[Heartbeat] = []

    outcome = await supervisor.run(Task.call(blocking.beat, 5000, "done"), on_heartbeat=beats.append)

    assert _value(outcome) == "done"
    assert beats[-1].payload == b"4999"
    assert outcome.heartbeats == 5000
    assert outcome.heartbeats_dropped == 5000 - len(beats)


@pytest.mark.parametrize("size", [1, 65_536, 262_100, 262_200, 1_000_003, 50_000_000])
async def test_payloads_of_any_size_go_both_ways(supervisor: Supervisor, size: int) -> None:
    assert len(_value(await supervisor.run(Task.call(blocking.echo, "x" * size)))) == size


async def test_a_task_over_the_limit_is_refused_before_it_is_sent() -> None:
    async with open_supervisor(SupervisorOptions(children=1, max_payload_bytes=1000)) as small:
        with pytest.raises(TaskRefused, match="over the limit of 1000 bytes"):
            await small.run(Task.call(blocking.echo, "x" * 1000))

        assert _value(await small.run(Task.call(blocking.echo, "x" * 900))) == "x" * 900


async def test_a_result_over_the_limit_is_a_typed_failure() -> None:
    async with open_supervisor(SupervisorOptions(children=1, max_payload_bytes=1000)) as small:
        failed = _failed(await small.run(Task.call(blocking.blob, 2000)))

    assert failed.kind == "result_refused"
    assert "over the limit of 1000 bytes" in failed.failure.message


async def test_what_cannot_travel_is_refused_by_name(supervisor: Supervisor) -> None:
    with blocking.unlisted_socket() as captured, pytest.raises(TaskRefused, match="cannot travel to a child"):
        await supervisor.run(Task(handler=lambda: captured.fileno()))
    with pytest.raises(TaskRefused, match="not of the form module:qualname"):
        await supervisor.run(Task(handler="nonsense"))
    with pytest.raises(TaskRefused, match="not a int"):
        await supervisor.run(Task(handler=3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("no_such_module:f", "module 'no_such_module' cannot be imported"),
        ("handlers.blocking:nothing", "module 'handlers.blocking' has no 'nothing'"),
        ("handlers.blocking:os", "which cannot be called"),
    ],
)
async def test_a_handler_that_is_not_there_is_a_typed_failure(supervisor: Supervisor, handler: str, text: str) -> None:
    failed = _failed(await supervisor.run(Task.call(handler)))

    assert failed.kind == "unloadable"
    assert text in failed.failure.message


@pytest.mark.parametrize(
    ("handler", "type_name", "text"),
    [
        (hostile.raise_two_arguments, "TwoArguments", "1"),
        (hostile.raise_unshowable, "Unshowable", "its __str__ raised RuntimeError"),
        (hostile.raise_group, "ExceptionGroup", "several (2 sub-exceptions)"),
        (hostile.system_exit, "SystemExit", "3"),
    ],
)
async def test_any_exception_arrives_as_plain_facts(
    supervisor: Supervisor, handler: Callable[..., Any], type_name: str, text: str
) -> None:
    failed = _failed(await supervisor.run(Task.call(handler)))

    assert failed.kind == "raised"
    assert failed.failure.type_name == type_name
    assert text in failed.failure.message
    assert "child/entry.py" not in failed.failure.traceback


async def test_a_chain_of_causes_arrives(supervisor: Supervisor) -> None:
    failed = _failed(await supervisor.run(Task.call(hostile.raise_chained)))

    assert failed.failure.message == "outer"
    assert failed.failure.causes == ({"type_name": "KeyError", "module": "builtins", "message": "'inner'"},)


async def test_long_messages_are_bounded(supervisor: Supervisor) -> None:
    failed = _failed(await supervisor.run(Task.call(hostile.raise_long)))

    assert failed.failure.message.startswith("[truncated ")
    assert len(failed.failure.message) < 9000


async def test_a_result_without_a_form_is_a_typed_failure(supervisor: Supervisor) -> None:
    failed = _failed(await supervisor.run(Task.call(hostile.unencodable)))

    assert failed.kind == "result_refused"
    assert "not JSON serializable" in failed.failure.message


async def test_a_thread_left_behind_does_not_delay_the_result(supervisor: Supervisor) -> None:
    with trio.fail_after(10):
        assert _value(await supervisor.run(Task.call(blocking.leave_thread_behind))) == "returned"


async def test_a_daemon_left_behind_is_killed_and_reported(supervisor: Supervisor) -> None:
    outcome = await supervisor.run(Task.call(blocking.leave_daemon_behind))

    daemon = _value(outcome)
    assert [one.pid for one in outcome.descendants] == [daemon]
    assert not Path(f"/proc/{daemon}").exists()


async def test_a_handler_that_returns_twice_has_one_result(supervisor: Supervisor) -> None:
    outcome = await supervisor.run(Task.call(hostile.fork_and_return))

    assert _value(outcome) > 0


async def test_closed_streams_do_not_hold_the_result_back(supervisor: Supervisor) -> None:
    assert _value(await supervisor.run(Task.call(hostile.close_streams))) == "closed"


@pytest.mark.parametrize(
    "handler",
    [
        hostile.write_garbage,
        hostile.announce_endless_result,
        hostile.send_changeable_memory,
        hostile.announce_memory_without_it,
        hostile.send_a_file_instead,
        hostile.garbage_heartbeat,
    ],
    ids=lambda handler: handler.__name__,
)
async def test_bytes_that_are_no_frame_end_the_attempt(supervisor: Supervisor, handler: Callable[..., Any]) -> None:
    with trio.fail_after(10):
        failed = _failed(await supervisor.run(Task.call(handler)))

    assert failed.kind == "protocol"


async def test_a_death_in_mid_result_is_an_exit_without_result(supervisor: Supervisor) -> None:
    failed = _failed(await supervisor.run(Task.call(hostile.die_in_mid_result)))

    assert (failed.kind, failed.exit_code) == ("exited", 0)


async def test_a_copied_socket_does_not_hide_a_death(supervisor: Supervisor) -> None:
    with trio.fail_after(10):
        failed = _failed(await supervisor.run(Task.call(hostile.hold_task_socket_open)))

    assert (failed.kind, failed.exit_code) == ("exited", 7)
    assert len(failed.descendants) == 1


async def test_no_more_attempts_run_at_once_than_there_are_slots(supervisor: Supervisor) -> None:
    controls = [AttemptControl() for _ in range(5)]
    most = 0

    def count(_beat: Heartbeat) -> None:
        nonlocal most
        most = max(most, supervisor.running)

    async with trio.open_nursery() as nursery:
        for control in controls:
            nursery.start_soon(
                functools.partial(supervisor.run, Task.call(blocking.sleep, 0.02), on_heartbeat=count, control=control)
            )

    assert most == 2
    assert supervisor.running == 0


async def test_an_error_of_the_caller_leaves_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_supervisor(SupervisorOptions(children=1)):
            _ = 1 / 0


async def test_a_broken_callback_ends_its_own_attempt_only(supervisor: Supervisor) -> None:
    def broken(_beat: Heartbeat) -> None:
        raise LookupError("mine")

    with trio.fail_after(10), pytest.raises(LookupError, match="mine"):
        await supervisor.run(Task.call(blocking.sleep, 600), on_heartbeat=broken)

    assert supervisor.running == 0
    assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


async def test_a_closed_supervisor_starts_nothing() -> None:
    async with open_supervisor(SupervisorOptions(children=1)) as closed:
        pass
    with pytest.raises(SupervisorClosed):
        await closed.run(Task.call(blocking.pid))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("handlers.starts_thread", "started 1 thread"),
        ("handlers.opens_socket", "opened 1 socket"),
    ],
)
async def test_a_module_that_makes_forking_unsafe_is_refused_by_name(module: str, text: str) -> None:
    with pytest.raises(StartRefused, match=text) as refused:
        async with open_supervisor(SupervisorOptions(preload=["handlers.blocking", module], strict=True)):
            pytest.fail("it opened")

    assert refused.value.module == module


async def test_a_preloaded_module_is_there_before_the_attempt() -> None:
    async with open_supervisor(SupervisorOptions(children=1, preload=["handlers.costly"])) as preloaded:
        first = _value(await preloaded.run(Task.call("handlers.costly:imported_by")))
        second = _value(await preloaded.run(Task.call("handlers.costly:imported_by")))

        assert first == second == preloaded.pid
