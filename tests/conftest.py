"""What every test may use: the shared fixture folder, and the checks that hold for all of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from machine import beside_others
from official.documents import official_documents
from official.events import event_documents
from official.watching import Watch, watching

_FIXTURES = Path(__file__).resolve().parents[2] / "shared" / "fixtures"


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Begin no test while another process has the machine for itself; the time of that wait is nobody's."""
    with beside_others():
        return (yield)


@pytest.fixture(scope="session")
def shared_fixtures() -> Path:
    """Give the folder of reference data beside the repository; a clone without it skips, CI fails."""
    if _FIXTURES.is_dir():
        return _FIXTURES
    if os.environ.get("PROCTOR_REQUIRE_FIXTURES"):
        pytest.fail("the reference data (../shared/fixtures) is missing and PROCTOR_REQUIRE_FIXTURES is set")
    pytest.skip("the reference data (../shared/fixtures) is not part of a clone")


@pytest.fixture(scope="session", autouse=True)
def official_watch() -> Iterator[Watch | None]:
    """Watch what servers in this process answer and record; None without the reference data."""
    if not _FIXTURES.is_dir():
        yield None
        return
    watch = Watch(official_documents(_FIXTURES), event_documents(_FIXTURES))
    with watching(watch):
        yield watch


@pytest.fixture(autouse=True)
def answers_fit_the_official_documents(official_watch: Watch | None) -> Iterator[None]:
    """Fail a test in which a server answered or recorded what the official documents do not allow."""
    yield
    if official_watch is not None:
        found, official_watch.problems = official_watch.problems, []
        assert not found, "\n".join(dict.fromkeys(found))


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a socket, a pipe or an event descriptor of its own."""
    processes, descriptors = _children(), _descriptors()
    yield
    left = _children() - processes
    assert not left, f"processes left behind: {left}"
    opened = _descriptors() - descriptors
    assert not opened, f"descriptors left open: {opened}"


def _children() -> set[str]:
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{task}/children").read_text().split()
        except FileNotFoundError:
            continue  # a thread that has ended meanwhile; what it had started is a child of another one now
        for pid in pids:
            try:
                found.add(f"{pid} {Path(f'/proc/{pid}/cmdline').read_text().replace(chr(0), ' ')[:80]}")
            except FileNotFoundError:
                continue
    return found


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "pipe:", "anon_inode:")):
            found.add(f"{name} {target}")
    return found
