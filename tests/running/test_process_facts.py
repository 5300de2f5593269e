"""What a worker says of its own process is what the operating system says."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from proctor.core.instants import parse_instant
from proctor.running.process_facts import ProcessFacts, cpu_percent


def test_the_facts_are_those_of_this_process() -> None:
    facts = ProcessFacts().now()
    process = psutil.Process()

    assert facts["process_id"] == os.getpid()
    assert facts["host"] == socket.gethostname()[:255]
    assert parse_instant(facts["process_started_at"]).timestamp() == pytest.approx(process.create_time(), abs=0.001)
    assert facts["memory_bytes"] == pytest.approx(process.memory_info().rss, rel=0.2)


def test_load_is_that_of_the_time_since_it_was_last_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1_000_000.0
    monkeypatch.setattr("proctor.running.process_facts.time.time", lambda: clock)
    facts = ProcessFacts()
    used = facts.now()
    clock += 1_000_000

    assert facts.now()["cpu_percent"] < 0.1
    assert facts.now()["process_uptime_seconds"] >= used["process_uptime_seconds"]


@pytest.mark.parametrize(
    ("busy", "span", "percent"), [(0.5, 1, 50), (3, 1, 100), (-1, 1, 0), (1, 0, 100), (1, 8, 12.5)]
)
def test_a_share_is_between_nothing_and_one_processor(busy: float, span: float, percent: float) -> None:
    assert cpu_percent(busy=busy, span=span) == percent
