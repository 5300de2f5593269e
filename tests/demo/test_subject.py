"""The demo finds something to work on in any folder with a readable file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from proctor.demo.report import report_lines
from proctor.demo.subject import choose
from proctor.errors import UsageError


def test_a_long_line_is_taken_from_the_first_file_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short\n")
    (tmp_path / "b.txt").write_text("short\n" + "x" * 50 + "\n")

    chosen = choose(tmp_path)

    assert (chosen.path.name, chosen.line_number, chosen.line) == ("b.txt", 2, "x" * 40)


@pytest.mark.parametrize("content", [b"", b"short", bytes(range(256)), b"\n" * 100])
def test_without_a_long_line_the_digest_stands_for_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "only").write_bytes(content)

    chosen = choose(tmp_path)

    assert (chosen.line_number, chosen.line) == (0, hashlib.sha256(content).hexdigest()[:40])


def test_a_file_whose_name_is_no_text_is_left_out_with_its_reason(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff.txt", "w") as file:
        file.write("x" * 50)
    (tmp_path / "good.txt").write_text("x" * 50)

    chosen = choose(tmp_path)

    assert [file.name for file in chosen.files] == ["good.txt"]
    (reason,) = chosen.skipped
    assert "its name is no text" in reason
    reason.encode()


def test_a_folder_with_nothing_to_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff.txt", "w") as file:
        file.write("x" * 50)

    with pytest.raises(UsageError, match="its name is no text"):
        choose(tmp_path)


def test_the_report_says_when_it_was_a_digest() -> None:
    match = {"way": "safe", "path": "/f", "line": 0}
    result = {"files": 1, "bytes": 1, "compressed": 1, "match": match, "stubborn": "", "flaky": ""}
    told = {
        "attempts": [], "result": result,
        "leftover_processes": 0, "duration_ms": 1, "workflow_id": "w", "history_file": "h", "database": "d",
    }  # fmt: skip

    assert any("/f, which has no line long enough: its digest" in line for line in report_lines(told))
