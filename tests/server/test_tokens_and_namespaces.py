"""Tokens and namespaces with real clients: the official SDK, our commands, and a server that shows no token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from proctor.client import Client
from proctor.errors import ServerRefused
from proctor.server import ServerOptions, serve
from proctor.server.credentials import Token

PROGRAM = Path(__file__).with_name("sdk_tokens.py")
TOKENS = tuple(Token(f"{role}-s3cret", frozenset({role})) for role in ("worker", "operator", "admin"))


@asynccontextmanager
async def guarded() -> AsyncIterator[str]:
    options = ServerOptions(tokens=TOKENS, namespaces=("default", "team"), workflow_task_lease_seconds=60)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve, options)
        nursery.cancel_scope.cancel()


async def run(*command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DURABLE_WORKFLOW_")}
    with trio.fail_after(100):
        return await trio.run_process(
            [sys.executable, *command],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**clean, **environment},
        )


async def test_the_official_worker_and_client_run_with_tokens_in_namespaces() -> None:
    async with guarded() as url:
        for namespace in ("team", "default"):
            done = await run(
                str(PROGRAM), url, namespace, WORKER_TOKEN="worker-s3cret", CONTROL_TOKEN="operator-s3cret"
            )
            assert json.loads(done.stdout) == 42, done.stderr.decode()
        for namespace in ("team", "default"):
            async with Client(url, namespace=namespace, token="admin-s3cret") as client:
                assert [row["namespace"] for row in await client.list_workflows()] == [namespace]


@pytest.mark.parametrize(
    # The SDK asks for discovery with the worker's token first, and says only that it did not get it.
    ("worker", "control", "namespace", "error"),
    [
        ("worker-s3cret", "worker-s3cret", "team", "ServerError"),
        ("guess", "operator-s3cret", "team", "RuntimeDiscoveryUnavailable"),
        ("worker-s3cret", "operator-s3cret", "nobody", "RuntimeDiscoveryUnavailable"),
    ],
)
async def test_the_official_sdk_is_told_what_is_wrong(worker: str, control: str, namespace: str, error: str) -> None:
    async with guarded() as url:
        done = await run(str(PROGRAM), url, namespace, WORKER_TOKEN=worker, CONTROL_TOKEN=control)
        assert json.loads(done.stdout) == error, done.stderr.decode()


async def test_our_commands_take_token_and_namespace_from_the_environment() -> None:
    async with guarded() as url:
        place = {"DURABLE_WORKFLOW_SERVER_URL": url, "DURABLE_WORKFLOW_NAMESPACE": "team"}
        given: dict[str, Any] = {**place, "DURABLE_WORKFLOW_AUTH_TOKEN": "operator-s3cret"}
        started = await run("-m", "proctor", "start", "t", "--queue", "q", "--id", "wf", **given)
        assert started.returncode == 0, started.stderr.decode()
        shown = await run("-m", "proctor", "describe", "wf", "--json", **given)
        assert json.loads(shown.stdout)["namespace"] == "team"
        elsewhere = await run("-m", "proctor", "describe", "wf", **{**given, "DURABLE_WORKFLOW_NAMESPACE": "default"})
        assert elsewhere.returncode == 1
        for token in ("", "wrong-s3cret", "worker-s3cret"):
            refused = await run("-m", "proctor", "list", **{**place, "DURABLE_WORKFLOW_AUTH_TOKEN": token})
            assert refused.returncode == 1
            assert b"s3cret" not in refused.stdout + refused.stderr


async def test_the_server_command_reads_tokens_from_a_file_and_shows_none(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("worker worker-s3cret\nadmin admin-s3cret\n")
    tokens.chmod(0o644)
    command = [sys.executable, "-m", "proctor", "server", "--port", "0", "--db", str(tmp_path / "a.db")]
    command += ["--tokens", str(tokens), "--namespace", "one", "--namespace", "two"]
    environment = {**os.environ, "DURABLE_WORKFLOW_AUTH_TOKEN": "shared-s3cret", "PROCTOR_LOG": "debug"}
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    async with process.stdout, process.stderr:
        try:
            with trio.fail_after(60):
                line = b""
                while not line.endswith(b"\n"):
                    line += await process.stdout.receive_some()
                url = line.decode().split()[-1]
                for token in ("admin-s3cret", "shared-s3cret"):
                    async with Client(url, namespace="two", token=token) as client:
                        assert await client.list_workflows() == []
                async with Client(url, namespace="one", token="worker-s3cret") as client:
                    with pytest.raises(ServerRefused, match="admin or operator"):
                        await client.list_workflows()
                assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        finally:
            process.terminate()
            await process.wait()
        told = await process.stderr.receive_some(1_000_000)
    assert b"chmod 600" in told
    assert b"s3cret" not in told


async def test_a_wrong_file_of_tokens_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("boss s3cret\n")
    done = await run("-m", "proctor", "server", "--port", "0", "--tokens", str(tmp_path / "tokens"))
    assert done.returncode == 2
    assert b"line 1" in done.stderr
    assert b"s3cret" not in done.stderr
