"""Bearer tokens with roles, their file, and that none is ever shown (transport.md §1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proctor.errors import UsageError
from proctor.server.credentials import Credentials, Token, is_readable_by_others, read_tokens
from server.stage import ROUTES, Ask, valid_body, world
from server.wire import Wire, running_server

TOKENS = tuple(Token(f"{role}-secret", frozenset({role})) for role in ("worker", "operator", "admin"))
BOTH = Token("both-secret", frozenset({"worker", "operator"}))
VERSIONS = {"X-Durable-Workflow-Protocol-Version": "1.20", "X-Durable-Workflow-Control-Plane-Version": "2"}


def opened_by(method: str, path: str) -> set[str]:
    """Give the roles that open an endpoint, as transport.md §1 says."""
    if path in ("/api/cluster/info", "/api/worker/register"):
        return {"worker", "operator", "admin"}
    if path.startswith(("/api/worker/", "/api/external-payloads/")):
        return {"worker"}
    return {"admin"} if method == "DELETE" else {"operator", "admin"}


async def ask(wire: Wire, method: str, path: str, token: str | None) -> tuple[int, str | None]:
    example = re.sub(r"\{\w+(:path)?\}", "x", path)
    given = {} if token is None else {"Authorization": f"Bearer {token}"}
    plane = "Protocol" if path.startswith(("/api/worker/", "/api/external")) else "Control-Plane"
    name = f"X-Durable-Workflow-{plane}-Version"
    reply = await wire.request(method, example, {}, headers={name: VERSIONS[name], **given})
    return reply.status, reply.reason


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_endpoint_takes_its_roles_and_no_other(method: str, path: str) -> None:
    async with running_server(credentials=Credentials(*TOKENS, BOTH)) as wire:
        assert await ask(wire, method, path, None) == (401, "unauthorized")
        assert await ask(wire, method, path, "guess") == (401, "unauthorized")
        roles = opened_by(method, path)
        if path.startswith("/api/external-payloads/"):
            return  # clients of the control plane transfer payloads, too, under their own version
        for role in ("worker", "operator", "admin"):
            status, reason = await ask(wire, method, path, f"{role}-secret")
            assert (reason == "forbidden") is (role not in roles), (role, status, reason)
        assert ((await ask(wire, method, path, "both-secret"))[1] == "forbidden") is (roles == {"admin"})


async def test_a_wrong_role_learns_nothing_of_namespaces_and_versions() -> None:
    async with running_server(credentials=Credentials(*TOKENS)) as wire:
        for path in ("/api/worker/heartbeat", "/api/worker/workflow-tasks/poll"):
            headers = {"Authorization": "Bearer operator-secret", "X-Namespace": "none"}
            (await wire.request("POST", path, {}, headers=headers)).refused(403, "forbidden")


async def test_without_tokens_nothing_is_asked_and_a_plane_without_one_stays_open() -> None:
    async with running_server() as wire:
        assert (await wire.control("GET", "/workflows")).status == 200
    async with running_server(credentials=Credentials(worker="w")) as wire:
        assert (await wire.control("GET", "/workflows")).status == 200
        (await wire.worker("/heartbeat", {})).refused(403, "forbidden")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/cluster/info"), ("POST", "/worker/register"), ("GET", "/workflows"), ("GET", "/workers")],
)
@pytest.mark.parametrize("configured", [{"worker": "right"}, {"control": "right"}])
async def test_an_unknown_token_is_no_token_also_where_none_is_asked_for(
    method: str, path: str, configured: dict[str, str]
) -> None:
    async with running_server(credentials=Credentials(**configured)) as wire:
        reply = await wire.request(method, f"/api{path}", {}, headers={"authorization": "Bearer wrong"})

        assert (reply.status, reply.reason) == (401, "unauthorized")


async def test_an_open_control_plane_does_not_let_a_worker_register_without_its_token() -> None:
    async with running_server(credentials=Credentials(worker="w")) as wire:
        (await wire.worker("/register", {})).refused(401, "unauthorized")
        assert (await wire.request("GET", "/api/cluster/info")).status == 200
    async with running_server(credentials=Credentials(control="c")) as wire:
        (await wire.worker("/register", {})).refused(422, "validation_failed")


async def test_no_answer_shows_a_token() -> None:
    async with running_server(credentials=Credentials(*TOKENS)) as wire:
        for secret in ("worker-secret", "operator-secret", "wrong-secret"):
            for method, path in ROUTES:
                example = re.sub(r"\{\w+(:path)?\}", "x", path)
                headers = {**VERSIONS, "Authorization": f"Bearer {secret}"}
                reply = await wire.request(method, example, {}, headers=headers)
                assert "-secret" not in str(reply)


@pytest.mark.parametrize(
    "given", ["Basic worker-secret", "worker-secret", "Bearer", "Bearer  ", "Bearer worker-secret x"]
)
async def test_other_schemes_and_shapes_are_no_token(given: str) -> None:
    async with running_server(credentials=Credentials(*TOKENS)) as wire:
        reply = await wire.request("POST", "/api/worker/heartbeat", {}, headers={**VERSIONS, "Authorization": given})
        reply.refused(401, "unauthorized")


class TestFile:
    """The file of tokens."""

    def write(self, folder: Path, text: str) -> Path:
        path = folder / "tokens"
        path.write_text(text)
        return path

    def test_roles_add_up_and_comments_are_skipped(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "# who\n\nworker  abc # the fleet\noperator\tdef\nadmin def\n")
        assert {token.secret: set(token.roles) for token in read_tokens(path)} == {
            "abc": {"worker"},
            "def": {"operator", "admin"},
        }

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("worker abc\nadmin", "line 2"),
            ("worker abc\nboss s3cret", "line 2"),
            ("worker s3cret s3cret", "line 1"),
            ("worker s3crét", "line 1"),
            ("worker " + "s3cret" * 1000, "line 1"),
            ("worker s3cret", "admin or operator"),
            ("admin s3cret", "open to everybody"),
            ("", "open to everybody"),
        ],
    )
    def test_a_wrong_file_is_refused_without_showing_a_token(self, tmp_path: Path, text: str, words: str) -> None:
        with pytest.raises(UsageError, match=re.escape(words)) as caught:
            read_tokens(self.write(tmp_path, text))
        assert "s3cr" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None

    def test_a_missing_or_unreadable_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be read"):
            read_tokens(tmp_path / "none")
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        with pytest.raises(UsageError, match="UTF-8"):
            read_tokens(tmp_path / "binary")

    def test_others_may_not_read_it(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "x")
        path.chmod(0o600)
        assert not is_readable_by_others(path)
        path.chmod(0o640)
        assert is_readable_by_others(path)

    def test_a_token_is_not_shown(self) -> None:
        assert "secret" not in repr(TOKENS)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_another_namespace_sees_and_changes_nothing(method: str, path: str) -> None:
    """Every endpoint is asked with the ids of one namespace in the name of another."""
    async with running_server(namespaces=("default", "other")) as wire:
        stage = await world(wire)
        before = await contents(wire)
        made = "nothing"
        for body in (valid_body(path, timeout_seconds=0), {}):
            reply = await stage.make(Ask(method, path, body, {}, None), namespace="other")
            assert reply.status < 500
            made = reply.body.get("run_id") or made
            shown = str({key: value for key, value in reply.body.items() if key != "server_capabilities"})
            for name in ("task_id", "attempt_id", "run_id", "activity_task_id"):
                assert reply.status >= 300 or stage.names[name] not in shown, reply
        after = await contents(wire)
        assert before <= after
        assert {row for row in after - before if "other" not in row and made not in row} == set()


async def contents(wire: Wire) -> set[str]:
    """Give every row of every table, as text."""

    def read(tx: object) -> set[str]:
        sql = tx._sql  # type: ignore[attr-defined]
        names = [name for (name,) in sql("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {f"{name}: {row!r}" for name in names for row in sql(f"SELECT * FROM {name}")}

    return await wire.store.transact(read)
