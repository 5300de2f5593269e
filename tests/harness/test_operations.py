"""The names of operations that rules use: every route of the server's worker plane has one of its own."""

from __future__ import annotations

from proctor.harness import OPERATIONS
from proctor.harness.exchanges import operation_of
from proctor.server.routes import WORKER_ROUTES


def test_every_route_of_the_worker_plane_has_a_name_of_its_own() -> None:
    routes = [(method, path.replace(":path", "")) for method, path, _ in WORKER_ROUTES]
    routes += [("POST", f"/api/worker/{kind}-tasks/poll") for kind in ("workflow", "activity", "query")]

    named = {route: operation_of(*route) for route in routes}

    assert [route for route, name in named.items() if name is None] == []
    assert len(set(named.values())) == len(routes)
    assert set(OPERATIONS) - set(named.values()) == {
        "cluster_info", "start_workflow", "upload_payload", "fetch_payload",
    }  # fmt: skip


def test_the_path_of_each_name_is_read_as_that_name() -> None:
    assert [operation_of(*OPERATIONS[name]) for name in OPERATIONS] == list(OPERATIONS)
