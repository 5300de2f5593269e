"""A full disk: a clear refusal at the start, exact 503 answers while running; with room again it goes on."""

from __future__ import annotations

import errno
import os
import resource
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import trio

from proctor.errors import StorageError
from proctor.server.database import open_database
from server.wire import Worker, running_server
from storage.ledger import Ledger, check, work
from storage.processes import http_face, server_forks
from storage.recorded_disk import recording


def test_a_new_file_that_finds_no_room_is_refused_and_can_be_made_later(tmp_path: Path) -> None:
    def pwrite(file: int, content: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.db"
    with (
        mock.patch("os.pwrite", pwrite),
        pytest.raises(StorageError, match=r"cannot be made: No space left.*Free some space"),
    ):
        open_database(path)
    assert path.read_bytes() == b""
    check(path, Ledger())


async def test_a_full_disk_refuses_writes_exactly_and_the_server_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path, ledger = tmp_path / "a.db", Ledger()
    with recording() as disk:
        async with running_server(database=path, sweeping=True) as wire:
            await work(wire, ledger, "a", rounds=3)
            worker = Worker(wire)
            await worker.register()
            await wire.start()
            claim = await worker.poll()
            await wire.start("other")
            disk.room = False

            poll = await worker.try_poll(request_id="again", timeout_seconds=30)
            body = poll.refused(503, "storage_pressure")
            assert (
                body.items()
                >= {
                    "retryable": True,
                    "storage_state": "fenced",
                    "request_admitted": False,
                    "task": None,
                    "poll_status": "storage_pressure",
                    "poll_request_id": "again",
                    "retry_same_poll_request_id": True,
                    "claim_admitted": False,
                }.items()
            )
            assert body["retry_after_seconds"] >= 1
            assert poll.headers["retry-after"] == str(body["retry_after_seconds"])
            for reply in (
                await claim.post("/heartbeat"),
                await claim.complete(),
                await claim.prepare(),
                await worker.wire.worker("/register", {"worker_id": "x", "task_queue": "q", "runtime": "python"}),
            ):
                if reply.reason != "validation_failed":
                    reply.refused(503, "storage_pressure")
                    assert (reply.body["request_admitted"], reply.body["retryable"]) == (False, True)
                    assert "Free some space" in reply.body["error"]
            told = await wire.control("POST", "/workflows", {"workflow_id": "no", "workflow_type": "t"})
            told.refused(503, "storage_pressure")
            # What needs no writing is answered as ever.
            assert (await wire.describe())["status"] == "running"
            assert (await wire.request("GET", "/api/cluster/info")).status == 200

            disk.room = True
            assert (await worker.try_poll(request_id="again")).ok()["task"]["workflow_id"] == "other"
            (await claim.complete()).ok()
            await wire.start("no")
            await work(wire, ledger, "b", rounds=3)
    check_ledger_only(path, ledger)


def check_ledger_only(path: Path, ledger: Ledger) -> None:
    """Check what the lanes did; other runs of the test are of no known shape."""
    with open_database(path) as database:
        sql = database.connection
        assert sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert set(ledger.runs) <= {run_id for (run_id,) in sql.execute("SELECT run_id FROM run")}
        assert ledger.events <= {event for (event,) in sql.execute("SELECT id FROM event")}


async def test_a_server_that_may_not_write_any_further_refuses_and_recovers(tmp_path: Path) -> None:
    """The system's own limit on the size of files stops the writes of a real server process."""
    path, ledger = tmp_path / "a.db", Ledger()
    async with server_forks() as forks:
        pid, url = await forks.start(path)
        async with http_face(url) as face:
            await work(face, ledger, "a", rounds=2)
            biggest = max(file.stat().st_size for file in tmp_path.iterdir())
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (biggest, hard))
            body = {"workflow_id": "refused", "workflow_type": "t", "task_queue": "q"}
            with trio.fail_after(30):
                while (reply := await face.control("POST", "/workflows", body)).status != 503:
                    body["workflow_id"] += "-"
            assert reply.reason in ("backend_unavailable", "storage_pressure")
            assert reply.body["retryable"] is True
            assert (await face.control("GET", f"/workflows/{body['workflow_id']}")).status == 404
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
            (await face.control("POST", "/workflows", body)).ok(201)
            async with trio.open_nursery() as nursery:
                for lane in "bcd":
                    nursery.start_soon(partial(work, face, ledger, lane, rounds=2))
        await forks.kill(pid)
    check_ledger_only(path, ledger)
