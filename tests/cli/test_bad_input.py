"""Each wrong input is one paragraph that says what, where and what to do, with its exit code; nothing is lost."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest

from processes import marked, parent, wait_for_exit
from stage import QUEUE, Stage, await_event, read_line

_UNREACHABLE = "http://127.0.0.1:9"


def _one_paragraph(run: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    assert run.returncode == code, run.stderr
    told = [line for line in run.stderr.splitlines() if line.startswith("proctor: ")]
    assert len(told) == 1, run.stderr
    for text in texts:
        assert text in told[0]
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["demo", "--nonsense"],
        ["worker"],
        ["start", "x"],
        ["server", "--port", "70000"],
        ["server", "--protocol", "1.17"],
        ["worker", "handlers.runs", "--queue", "q", "--isolation", "shared"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_two_and_says_how(stage: Stage, arguments: list[str]) -> None:
    run = stage.call(*arguments)

    assert run.returncode == 2
    assert "Error: " in run.stderr
    assert "Traceback" not in run.stderr


def test_help_and_version_work(stage: Stage) -> None:
    for arguments in (["--help"], ["--version"], ["worker", "--help"], ["demo", "--help"], ["server", "--help"]):
        run = stage.call(*arguments)
        assert run.returncode == 0, run.stderr
        assert run.stdout


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        (None, ["there is no module 'app'", "run the command from the folder"]),
        ("import nosuchdependency", ["module 'app' cannot be imported", "'nosuchdependency', which is not installed"]),
        ("x = 1\nraise RuntimeError('broken on purpose')", ["RuntimeError: broken on purpose", "app.py, line 2"]),
        ("def f(:", ["module 'app' cannot be imported: SyntaxError"]),
        ("x = 1", ["module 'app' registers nothing"]),
    ],
    ids=["missing", "dependency", "raises", "syntax", "empty"],
)
def test_a_module_that_cannot_be_used(stage: Stage, source: str | None, texts: list[str]) -> None:
    if source is not None:
        (stage.folder / "app.py").write_text(source)

    _one_paragraph(stage.call("worker", "app", "--queue", "q", "--server", _UNREACHABLE), 2, *texts)


def test_a_path_instead_of_a_module_is_corrected(stage: Stage) -> None:
    run = stage.call("worker", "./app/handlers.py", "--queue", "q", "--server", _UNREACHABLE)

    _one_paragraph(run, 2, "is a path; give the module's name, such as 'app.handlers'")


@pytest.mark.parametrize(
    ("text", "part"), [("{", "--args is not JSON"), ('{"a": 1}', "must be a JSON list"), ("3", "not int")]
)
def test_arguments_that_are_no_list(stage: Stage, text: str, part: str) -> None:
    run = stage.call("start", "w", "--queue", "q", "--args", text, "--server", _UNREACHABLE)

    _one_paragraph(run, 2, part)


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "w", "--queue", "q"],
        ["describe", "x"],
        ["history", "x"],
        ["cancel", "x"],
        ["worker", "handlers.runs", "--queue", "q"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_server_that_is_not_there(stage: Stage, arguments: list[str]) -> None:
    run = stage.call(*arguments, "--server", _UNREACHABLE)

    _one_paragraph(run, 1, _UNREACHABLE, "Check that the server runs")


def test_a_server_address_that_is_none(stage: Stage) -> None:
    _one_paragraph(stage.call("describe", "x", "--server", "nonsense"), 2, "nonsense")


def test_a_workflow_id_that_is_not_there(stage: Stage) -> None:
    stage.start_server()

    for command in ("describe", "history", "cancel"):
        _one_paragraph(stage.call(command, "nobody"), 1, "nobody")


def test_a_port_that_is_taken(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = stage.call("server", "--port", str(taken.getsockname()[1]))

    _one_paragraph(run, 2, str(taken.getsockname()[1] if taken.fileno() != -1 else "in use"))


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_corrupt_database_is_refused_and_left_as_it_is(stage: Stage, content: bytes) -> None:
    stage.database.write_bytes(content)

    run = stage.call("server", "--port", "0", "--db", str(stage.database))

    _one_paragraph(run, 2, str(stage.database))
    assert stage.database.read_bytes() == content


def test_a_foreign_database_is_refused_and_left_as_it_is(stage: Stage) -> None:
    with sqlite3.connect(stage.database) as connection:
        connection.execute("CREATE TABLE precious (value TEXT)")
        connection.execute("INSERT INTO precious VALUES ('kept')")
    connection.close()

    run = stage.call("server", "--port", "0", "--db", str(stage.database))

    _one_paragraph(run, 2, str(stage.database))
    with sqlite3.connect(stage.database) as connection:
        assert connection.execute("SELECT value FROM precious").fetchall() == [("kept",)]
    connection.close()


def test_a_database_in_a_folder_that_is_not_there(stage: Stage) -> None:
    run = stage.call("server", "--port", "0", "--db", str(stage.folder / "no" / "where.db"))

    _one_paragraph(run, 2, "where.db")


def test_a_server_without_the_protocol_is_refused_by_name(stage: Stage) -> None:
    stage.start_server("--protocol", "1.19")

    run = stage.call("worker", "handlers.runs", "--queue", "q")

    _one_paragraph(run, 3, "1.20")


def test_an_unknown_workflow_type_waits_for_its_worker(stage: Stage) -> None:
    stage.start_server()
    stage.start_worker()

    run = stage.call("start", "nobody.knows", "--queue", QUEUE, "--id", "w-1", "--wait", "--timeout", "1.5")

    assert run.returncode == 1
    assert "waits for a worker on queue 'e2e' that registers 'nobody.knows'" in run.stderr
    shown = json.loads(stage.call("describe", "w-1", "--json").stdout)
    assert shown["status"] in ("pending", "waiting")


@pytest.mark.parametrize(
    ("activity", "text"),
    [("nobody.knows", "nobody.knows"), ("e2e.unencodable", "unsupported_value_type")],
)
def test_an_activity_that_cannot_succeed_fails_the_run_with_its_reason(stage: Stage, activity: str, text: str) -> None:
    stage.start_server()
    stage.start_worker()

    run = stage.call("start", "e2e.one", "--queue", QUEUE, "--args", json.dumps([activity]), "--wait", within=30)

    _one_paragraph(run, 1, "ended as failed", text)


def test_a_token_opens_the_server_and_never_reaches_a_child(stage: Stage) -> None:
    token = {"DURABLE_WORKFLOW_AUTH_TOKEN": "hush-hush"}
    stage.start_server(variables=token)
    worker = stage.start_worker(variables=token)
    zygotes = [pid for pid in marked(stage.mark) if parent(pid) == worker.pid]
    assert len(zygotes) == 1
    assert b"hush-hush" not in Path(f"/proc/{zygotes[0]}/environ").read_bytes()

    refused = stage.call("start", "e2e.one", "--queue", QUEUE)
    run = stage.call(
        "start", "e2e.one", "--queue", QUEUE, "--args", '["e2e.environment"]', "--wait", within=30, variables=token
    )

    assert refused.returncode == 1
    assert "hush" not in refused.stderr
    assert run.returncode == 0, run.stderr
    environment = json.loads(run.stdout)
    assert "DURABLE_WORKFLOW_AUTH_TOKEN" not in environment
    assert "hush-hush" not in environment.values()


def test_the_second_signal_stops_a_worker_now(stage: Stage) -> None:
    stage.start_server()
    worker = stage.start_worker()
    stage.start_run("e2e.stuck", str(stage.folder), workflow_id="w-1")
    await_event(worker, "attempt_started", within=20)

    worker.send_signal(signal.SIGTERM)
    await_event(worker, "draining", within=10)
    worker.send_signal(signal.SIGTERM)

    assert wait_for_exit(worker.pid, within=10)
    assert worker.wait() == 0


@pytest.mark.parametrize("asked_by", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_the_demo_leaves_nothing(stage: Stage, asked_by: signal.Signals) -> None:
    demo = stage.start("demo", str(Path(__file__).parent), "--folder", str(stage.folder / "kept"))
    assert read_line(demo, within=20).startswith("server http://")

    demo.send_signal(asked_by)

    assert wait_for_exit(demo.pid, within=20)
    assert demo.wait() == 130
