"""What is preloaded is paid for once; what a fork must not copy is found and named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking
from processes import MARK, marked, new_mark
from proctor_supervisor import (
    Completed,
    Outcome,
    StartRefused,
    SupervisorOptions,
    Task,
    open_supervisor,
)


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


async def test_a_long_import_is_paid_for_once() -> None:
    async with open_supervisor(SupervisorOptions(children=2, preload=["handlers.takes_long"])) as supervisor:
        start = time.monotonic()
        importers = [_value(await supervisor.run(Task.call("handlers.takes_long:imported_by"))) for _ in range(10)]
        spent = time.monotonic() - start

        assert importers == [supervisor.pid] * 10
        assert spent < 3, "an attempt imported it again"
        # The handlers of signals that the module has set stay in the supervisor process.
        assert _value(await supervisor.run(Task.call("handlers.takes_long:dispositions"))) == [True] * 3


@pytest.mark.parametrize(
    ("module", "text", "unsafe"),
    [
        ("handlers.starts_thread", "started 1 thread", True),
        ("handlers.starts_lasting_thread", "started 1 thread", True),
        ("handlers.opens_socket", "opened 1 socket", True),
        ("handlers.opens_processes", "started 1 process", True),
        ("handlers.holds_lock", r"left the lock 'handlers.holds_lock.GUARD.lock' held", True),
        ("handlers.holds_file_lock", "locked a file", True),
        ("handlers.exits", "cannot be imported: SystemExit: usage: exits FILE", False),
    ],
)
async def test_what_a_fork_must_not_copy_is_refused_at_once_and_by_name(
    monkeypatch: pytest.MonkeyPatch, module: str, text: str, unsafe: bool
) -> None:
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    with trio.fail_after(4), pytest.raises(StartRefused, match=text) as refused:
        async with open_supervisor(SupervisorOptions(preload=["handlers.blocking", module], strict=True)):
            pytest.fail("it opened")

    assert (refused.value.module, refused.value.unsafe) == (module, unsafe)
    assert marked(mark) == [], "what the module had started lives on"


async def test_a_lock_that_is_held_makes_children_be_execd() -> None:
    async with open_supervisor(SupervisorOptions(children=1, preload=["handlers.holds_lock"])) as supervisor:
        assert not supervisor.forks
        assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


@pytest.mark.parametrize(
    "module",
    ["logging", "asyncio", "multiprocessing", "concurrent.futures", "threading", "subprocess", "sqlite3", "decimal"],
)
async def test_ordinary_modules_are_safe(module: str) -> None:
    async with open_supervisor(SupervisorOptions(children=1, preload=[module], strict=True)) as supervisor:
        assert supervisor.forks


async def test_what_a_module_does_to_signals_stays_without_effect() -> None:
    """Deaf to SIGCHLD, or with a handler that raises in its loop, the supervisor process would be none."""
    options = SupervisorOptions(children=1, standby=0, preload=["handlers.meddles_with_signals"], strict=True)
    with trio.fail_after(20):
        async with open_supervisor(options) as supervisor:
            zygote = supervisor.pid
            for _ in range(3):
                seen = _value(await supervisor.run(Task.call(blocking.surroundings)))
                assert (seen["unusual_signals"], seen["mask"]) == ([], 0)
                assert _value(await supervisor.run(Task.call(blocking.sleep, 0.1))) == "slept"
            assert supervisor.pid == zygote


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("handlers.closes_descriptors", "'handlers.closes_descriptors' closed the descriptors"),
        ("handlers.takes_epoll_away", "no attribute 'epoll'"),
    ],
)
async def test_a_module_that_breaks_the_supervisor_process_is_told_of_at_the_start(
    capfd: pytest.CaptureFixture[str], module: str, message: str
) -> None:
    with trio.fail_after(10), pytest.raises(StartRefused, match=f"ended before it was ready.*{module}"):
        async with open_supervisor(SupervisorOptions(preload=[module])):
            pytest.fail("it opened")

    assert message in capfd.readouterr().err


_STARTS_A_THREAD = """#!{python} -I
import runpy, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("preload", [[], ["handlers.blocking"]])
async def test_a_thread_from_the_start_of_the_interpreter_makes_forking_unsafe_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, preload: list[str]
) -> None:
    """As a tracer or profiler starts one from sitecustomize or a .pth file, before anything is preloaded."""
    interpreter = tmp_path / "python"
    interpreter.write_text(_STARTS_A_THREAD.format(python=sys.executable))
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))

    async with open_supervisor(SupervisorOptions(children=1, preload=preload)) as supervisor:
        assert (supervisor.forks, supervisor.unsafe_module) == (False, "site")
        assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


async def test_a_path_without_measure_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/nowhere/{number:060}" for number in range(3000))])
    with trio.fail_after(10), pytest.raises(StartRefused, match=r"sys\.path .* over the limit"):
        async with open_supervisor():
            pytest.fail("it opened")


@contextmanager
def _dispositions_of_a_daemon() -> Iterator[None]:
    """Block every signal and ignore many, as some programs do for themselves."""
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGUSR1)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGINT, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, before in ignored.items():
            signal.signal(number, before)


async def test_signals_that_the_owner_blocks_or_ignores_are_not_inherited() -> None:
    """With SIGCHLD blocked the supervisor process would never learn that a child has ended."""
    with _dispositions_of_a_daemon(), trio.fail_after(10):
        async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
            seen = _value(await supervisor.run(Task.call(blocking.surroundings)))

    assert seen["unusual_signals"] == []
    assert seen["mask"] == 0


async def test_a_module_may_put_something_in_the_places_of_the_standard_streams() -> None:
    async with open_supervisor(SupervisorOptions(children=1, preload=["handlers.replaces_streams"])) as supervisor:
        outcome = await supervisor.run(Task.call(blocking.say, "out", "err"))

    assert isinstance(outcome, Completed), outcome
    assert outcome.output.stdout == "out\nerr\n"  # to print to a stream that is None is to print to stdout


async def test_what_a_module_has_started_goes_when_it_ends_the_supervisor_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    with trio.fail_after(10), pytest.raises(StartRefused, match="ended before it was ready"):
        async with open_supervisor(SupervisorOptions(preload=["handlers.dies_with_process"])):
            pytest.fail("it opened")

    assert marked(mark) == []


@pytest.mark.parametrize(("closed", "when"), [((2,), "before"), ((0, 1, 2), "before"), ((), "late")])
def test_an_owner_without_standard_streams_works_all_the_same(
    tmp_path: Path, closed: tuple[int, ...], when: str
) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    found = tmp_path / "found"
    subprocess.run(
        [sys.executable, "-m", "handlers.bare_program", str(found), when],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        preexec_fn=close,
        timeout=30,
        check=False,
    )

    assert found.read_text() == "Completed out\nerr\n"
