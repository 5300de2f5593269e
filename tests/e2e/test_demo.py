"""`proctor demo` does what it says, and says what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stage import Stage


@pytest.fixture
def subject(tmp_path: Path) -> Path:
    folder = tmp_path / "subject"
    (folder / "below").mkdir(parents=True)
    for number in range(30):
        (folder / f"file{number:02}.txt").write_text(f"line one of {number}\n" + "word " * 40 + "\n")
    (folder / "below" / "deep.bin").write_bytes(bytes(range(256)))
    return folder


def _told(stage: Stage, *arguments: str) -> dict[str, Any]:
    run = stage.call("demo", *arguments, "--json", "--folder", str(stage.folder / "kept"), within=90)
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def test_the_demo_kills_what_is_stuck_and_finishes(stage: Stage, subject: Path) -> None:
    told = _told(stage, str(subject))

    summary = [(one["activity"], one["attempt"], one["outcome"], one["timeout_kind"]) for one in told["attempts"]]
    assert summary == [
        ("demo.digest", 1, "completed", None),
        ("demo.digest", 1, "completed", None),
        ("demo.match", 1, "timed_out", "start_to_close"),
        ("demo.match", 2, "completed", None),
        ("demo.stubborn", 1, "timed_out", "heartbeat"),
        ("demo.flaky", 1, "failed", None),
        ("demo.flaky", 2, "completed", None),
    ]
    assert told["leftover_processes"] == 0
    assert told["result"]["files"] == 31
    assert told["result"]["match"]["way"] == "safe"

    match, stubborn = told["attempts"][2]["stop"], told["attempts"][4]["stop"]
    for stop in (match, stubborn):
        assert (stop["signal"], stop["sent_by_us"], stop["evidence"]) == (9, True, "reaped")
        assert not Path(f"/proc/{stop['pid']}").exists()
    assert "re/__init__.py" in match["last_stack_line"]
    assert "in stubborn" in stubborn["last_stack"]
    assert [step["step"] for step in stubborn["steps"]] == ["notice", "raise", "kill"]
    assert stubborn["descendants_killed"]
    assert all(one["stop"] is None for one in told["attempts"] if one["outcome"] in ("completed", "failed"))

    # The database is what was promised: another server reads the same history back.
    stage.database = Path(told["database"])
    stage.start_server()
    events = stage.history(told["workflow_id"])
    assert events == json.loads(Path(told["history_file"]).read_text())["events"]
    local = [event for event in events if event["event_type"].startswith("Activity")]
    assert {event["event_type"] for event in local} == {
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityHeartbeatRecorded",
        "ActivityTimedOut",
        "ActivityRetryScheduled",
        "ActivityCompleted",
    }
    assert all(event["payload"]["execution_mode"] == "local" for event in local)
    assert all(event["payload"]["local_activity"] is True for event in local)


def test_the_report_names_proofs_result_and_history(stage: Stage, subject: Path) -> None:
    run = stage.call("demo", str(subject), "--folder", str(stage.folder / "kept"), within=90)

    assert run.returncode == 0, run.stderr
    for text in (
        "demo.match attempt 1: attempt timeout",
        "sent by us",
        "it was stuck at: File",
        "killed below it, too:",
        "31 files digested and compressed",
        "Processes left behind: 0",
        f"{stage.folder}/kept/history.json",
        "proctor history demo-",
    ):
        assert text in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda folder: folder / "nothing", "nothing' cannot be used: No such file or directory"),
        (lambda folder: folder, "holds no file that can be read"),
    ],
    ids=["missing", "empty"],
)
def test_a_path_without_files_is_one_paragraph(stage: Stage, tmp_path: Path, make: Any, text: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    run = stage.call("demo", str(make(empty)))

    assert run.returncode == 2
    assert text in run.stderr
    assert run.stderr.count("\n") == 1
