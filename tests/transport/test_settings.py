"""Where the server is, and which token goes where."""

from __future__ import annotations

import pytest

from proctor.errors import UsageError
from proctor.transport.calls import Call, Plane
from proctor.transport.settings import ServerSettings

URL = "http://server:1"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://server:1", "http://server:1/api"),
        ("http://server:1/", "http://server:1/api"),
        ("https://server/workflow", "https://server/workflow/api"),
        ("http://[::1]:80", "http://[::1]:80/api"),
    ],
)
def test_paths_are_sent_below_the_root_of_the_server(url: str, base: str) -> None:
    assert ServerSettings(url).base == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "server:1",
        "ftp://server",
        "http://",
        "http://server/api",
        "http://server/api/",
        "http://server?x=1",
        "http://server#x",
        "http://server:99999",
        "http://server:0",
        "http://[::1",
        "http://ann:pw@server",
    ],
)
def test_an_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerSettings(url)

    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("namespace", ["", "a\nb", "ü"])
def test_an_unusable_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(UsageError, match="namespace"):
        ServerSettings(URL, namespace)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Evil: 1", "tökén"])
def test_an_unusable_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerSettings(URL, token=token)

    assert not token or token not in str(caught.value)


def bearer(settings: ServerSettings, plane: Plane) -> str | None:
    return settings.headers(Call(plane, "GET", "/x")).get("Authorization")


def test_the_token_of_a_plane_wins_over_the_shared_one() -> None:
    settings = ServerSettings(URL, token="shared", worker_token="worker", control_token="control")

    assert bearer(settings, "worker") == "Bearer worker"
    assert bearer(settings, "control") == "Bearer control"
    assert bearer(settings, "discovery") == "Bearer worker"


def test_the_shared_token_serves_both_planes() -> None:
    settings = ServerSettings(URL, token="shared")

    assert {bearer(settings, plane) for plane in ("worker", "control", "discovery")} == {"Bearer shared"}


def test_without_tokens_there_is_no_authorization() -> None:
    assert bearer(ServerSettings(URL), "worker") is None


@pytest.mark.parametrize(("held", "plane"), [("control_token", "worker"), ("worker_token", "control")])
def test_the_other_planes_token_is_never_borrowed(held: str, plane: Plane) -> None:
    settings = ServerSettings(URL, **{held: "other"})

    with pytest.raises(UsageError) as caught:
        bearer(settings, plane)

    assert f"{plane}_token" in str(caught.value)


def test_discovery_needs_no_token_of_its_own() -> None:
    assert bearer(ServerSettings(URL, control_token="control"), "discovery") == "Bearer control"


def test_discovery_speaks_the_worker_version_with_a_worker_token() -> None:
    with_token = ServerSettings(URL, worker_token="w").headers(Call("discovery", "GET", "/cluster/info"))
    without = ServerSettings(URL, token="t").headers(Call("discovery", "GET", "/cluster/info"))

    assert "X-Durable-Workflow-Protocol-Version" in with_token
    assert "X-Durable-Workflow-Control-Plane-Version" in without


def test_settings_do_not_show_their_tokens() -> None:
    shown = repr(ServerSettings(URL, token="t0ken", worker_token="w0rker", control_token="c0ntrol"))

    assert not any(token in shown for token in ("t0ken", "w0rker", "c0ntrol"))
