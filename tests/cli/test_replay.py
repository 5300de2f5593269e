"""``proctor replay``: a saved history against workflow code, with its exit codes and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from core.histories import HistoryWriter
from proctor.cli import failures
from proctor.cli.replay import replay
from proctor.core import codec
from stage import Stage

SOURCE = """
from proctor import workflow

@workflow.defn(name="order")
class Order:
    async def run(self, ctx, item, more=None):
        kept = await ctx.schedule_activity("keep", [item])
        await ctx.sleep(60)
        return [kept, await ctx.local_activity("send", [item])]
"""
CHANGED = SOURCE.replace("ctx.sleep(60)", "ctx.sleep(90)")


def events() -> list[dict[str, Any]]:
    history = HistoryWriter()
    history.add("ActivityScheduled", sequence=1, activity_type="keep")
    history.add("ActivityCompleted", sequence=1, activity_type="keep", result=codec.encode("kept"))
    history.add("TimerScheduled", sequence=2, timer_id="t", delay_seconds=60)
    history.add("TimerFired", sequence=2, timer_id="t", delay_seconds=60)
    return history.events


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch, folder: Path, source: str = SOURCE) -> tuple[int, str]:
    """Run the command in this process; give its exit code and what it said."""
    name = f"app_{abs(hash((str(folder), source)))}"
    (folder / f"{name}.py").write_text(source)
    monkeypatch.chdir(folder)
    result: Result = CliRunner().invoke(
        replay, [*arguments, "--module", name, "--workflow", "order"], standalone_mode=False
    )
    if result.exception is not None:
        told = failures.explain(result.exception)
        return told.code, told.text
    return int(result.return_value or 0), result.output


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "history.json"
    file.write_text(json.dumps({"workflow_id": "order-1", "events": events(), "input": ["book"]}))
    return file


def test_the_same_code_is_deterministic_and_its_next_step_is_told(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call(str(saved), monkeypatch=monkeypatch, folder=tmp_path)

    assert code == 0
    assert "deterministic: workflow 'order' replays its 6 events; then: local activity send" in said


def test_changed_code_exits_with_four_and_tells_sequence_expected_and_found(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call(str(saved), monkeypatch=monkeypatch, folder=tmp_path, source=CHANGED)

    assert code == 4
    assert all(part in said for part in ("at sequence 2", "timer of 90 s", "a timer of 60 s"))


def test_the_verdict_is_one_json_object(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = call(str(saved), "--json", monkeypatch=monkeypatch, folder=tmp_path)
    assert (code, json.loads(said)) == (
        0,
        {"verdict": "deterministic", "workflow": "order", "events": 6, "follows": ["local activity send"]},
    )

    code, said = call(str(saved), "--json", monkeypatch=monkeypatch, folder=tmp_path, source=CHANGED)
    told = json.loads(said)
    assert (code, told["verdict"], told["sequence"], told["expected"], told["found"]) == (
        4,
        "nondeterminism",
        2,
        "timer of 90 s",
        "a timer of 60 s",
    )


@pytest.mark.parametrize("end", ["WorkflowCompleted", "WorkflowContinuedAsNew"])
def test_code_that_does_not_end_as_its_history_did_is_nondeterminism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    history = [*events()]
    history.append({"event_type": end, "sequence": 7, "id": "end", "payload": {}})
    file = tmp_path / "closed.json"
    file.write_text(json.dumps(history))

    code, said = call(str(file), "--args", '["book"]', monkeypatch=monkeypatch, folder=tmp_path)

    assert code == 4
    assert f"the history records {end}" in said
    assert "at sequence 3" in said


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("5", "a history is a list of events"),
        ("{}", "under one of events, history_events, history"),
        ('[{"event_type": 5}]', "event 0 has no event_type"),
        ('[{"event_type": "WorkflowStarted", "payload": {"payload_codec": "json"}}]', "unsupported_payload_codec"),
        ('{"events": [{"type": "WorkflowStarted"}], "input": "nonsense"}', "invalid_payload_framing"),
        ("", "is empty"),
        (" \n", "is empty"),
        ("[]", "has no events"),
        ('{"events": []}', "has no events"),
        ("\x1f\x8b", "is compressed"),
    ],
)
def test_what_cannot_be_read_exits_with_two_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, part: str
) -> None:
    file = tmp_path / "history.json"
    file.write_bytes(content.encode("latin-1"))

    code, said = call(str(file), monkeypatch=monkeypatch, folder=tmp_path)

    assert code == 2
    assert part in said


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
def test_a_history_may_be_in_any_encoding_of_unicode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    file = tmp_path / "history.json"
    file.write_text(json.dumps({"events": events(), "input": ["böok"]}, ensure_ascii=False), encoding=encoding)

    assert call(str(file), monkeypatch=monkeypatch, folder=tmp_path)[0] == 0


def test_a_file_that_is_not_there_and_arguments_that_are_missing_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call("nowhere.json", monkeypatch=monkeypatch, folder=tmp_path)
    assert (code, "cannot be read" in said) == (2, True)

    (tmp_path / "bare.json").write_text(json.dumps(events()))
    code, said = call("bare.json", monkeypatch=monkeypatch, folder=tmp_path)
    assert (code, "--args" in said) == (2, True)
    assert call("bare.json", "--args", "[1]", monkeypatch=monkeypatch, folder=tmp_path)[0] == 0
    assert call("bare.json", "--args", "{}", monkeypatch=monkeypatch, folder=tmp_path)[0] == 2
    code, said = call("bare.json", "--args", '["\\ud800"]', monkeypatch=monkeypatch, folder=tmp_path)
    assert (code, "no Unicode" in said) == (2, True)


def test_a_workflow_that_the_module_does_not_have_is_told_with_those_it_has(
    stage: Stage, tmp_path: Path, saved: Path
) -> None:
    (stage.folder / "shop.py").write_text(SOURCE)

    run = stage.call("replay", str(saved), "--module", "shop", "--workflow", "other")

    assert run.returncode == 2
    assert "has no workflow 'other'; it has order" in run.stderr


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (SOURCE + SOURCE.replace("class Order", "class Second"), "more than one workflow 'order'"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
    ],
)
def test_a_module_that_is_no_answer_is_told_and_is_no_defect_of_ours(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, part: str
) -> None:
    code, said = call(str(saved), monkeypatch=monkeypatch, folder=tmp_path, source=source)

    assert (code, part in said) == (2, True)
