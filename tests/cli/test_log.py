"""What commands log: to standard error, and never what variables held where an error was raised."""

from __future__ import annotations

import io
import sys

import pytest
import structlog

from proctor.cli.options import log_to_stderr


def test_a_logged_error_shows_where_it_was_raised_and_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    before = structlog.get_config()
    log_to_stderr()
    log = structlog.get_logger("test")

    def refuse(body: dict[str, str]) -> None:
        raise ValueError("no")

    try:
        refuse({"registration_token": "s3cr" + "et"})
    except ValueError:
        log.exception("it was refused")
    finally:
        structlog.configure(**before)
    for expected in ("it was refused", "ValueError: no", "in refuse"):
        assert expected in printed.getvalue()
    assert "s3cret" not in printed.getvalue()
