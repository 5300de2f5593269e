"""Fail closed: nothing is registered that discovery does not show, nothing is advertised that is not
implemented.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core.negotiation import check_profile, negotiate_ordinary, negotiate_supervised
from proctor.errors import NegotiationRefused, UsageError

Body = dict[str, Any]

INFO: Body = {
    "limits": {"max_payload_bytes": 1000},
    "control_plane": {
        "version": "2",
        "request_contract": {"schema": "durable-workflow.v2.control-plane-request.contract", "version": 1},
    },
    "worker_protocol": {
        "version": "1.20",
        "server_capabilities": {
            "long_poll_timeout": 20,
            "cooperative_cancellation": True,
            "prepared_local_activities": True,
            "prepared_local_activity_groups": True,
            "prepared_local_activity_cancellation_policies": ["try_cancel"],
            "worker_sessions": {"supported": True},
            "query_tasks": True,
            "worker_deregistration_fencing": {
                "supported": True,
                "schema": "durable-workflow.v2.worker-deregistration.v1",
                "endpoint": "/worker/registrations/{workerId}/deregister",
                "receipt_retention_seconds": 600,
            },
        },
    },
}


LOCAL: Body = {"local_activities": {"supported": True}}


def info(change: Callable[[Body, Body], None] = lambda info, capabilities: None) -> Body:
    changed = copy.deepcopy(INFO)
    change(changed, changed["worker_protocol"]["server_capabilities"])
    return changed


def test_a_capable_server_gets_exactly_what_is_implemented() -> None:
    terms = negotiate_supervised(info())

    assert set(terms.capabilities) == {
        "memo_upserts",
        "typed_search_attributes",
        "durable_selection",
        "workflow_entry_arguments_validation",
        "message_streams",
        "query_tasks",
        "cooperative_cancellation",
        "prepared_local_activities",
        "prepared_local_activity_groups",
        "prepared_local_activity_cancellation_policies",
    }
    assert terms.fenced_deregistration is True
    assert terms.max_payload_bytes == 1000
    assert terms.max_poll_seconds == 20
    assert (terms.query_tasks, terms.query_task_authority) == (True, False)


@pytest.mark.parametrize(
    ("offered", "commands", "taken"),
    [
        ({"supported": True}, ["upsert_memo"], True),
        ({"supported": True}, ["start_timer"], False),
        ({"supported": True}, "upsert_memo", False),
        ({"supported": "true"}, ["upsert_memo"], False),
        (None, ["upsert_memo"], False),
        ({"supported": True}, None, False),
    ],
)
def test_memos_are_updated_only_where_both_the_contract_and_the_command_are_offered(
    offered: object, commands: object, taken: bool
) -> None:
    def change(info: Body, capabilities: Body) -> None:
        capabilities |= {"workflow_memo_updates": offered, "supported_workflow_task_commands": commands} | LOCAL

    for negotiated in (negotiate_supervised, negotiate_ordinary):
        assert negotiated(info(change)).memo_updates is taken


@pytest.mark.parametrize("offered", [False, None, "true", 1])
def test_queries_are_taken_only_where_they_are_offered(offered: object) -> None:
    for negotiated in (negotiate_supervised, negotiate_ordinary):
        terms = negotiated(info(lambda _, capabilities: capabilities.update(query_tasks=offered, **LOCAL)))

        assert terms.query_tasks is False
        assert "query_tasks" not in terms.capabilities


def test_only_worker_protocol_1_20_looks_at_the_claim_on_a_query() -> None:
    offering = info(lambda _, capabilities: capabilities.update(query_task_authority=True, **LOCAL))

    assert negotiate_supervised(offering).query_task_authority is True
    assert negotiate_ordinary(offering).query_task_authority is False


def test_the_manifest_agrees_with_the_flat_list() -> None:
    terms = negotiate_supervised(info())

    for name in ("local_activities", "worker_sessions", "sticky_execution"):
        assert terms.manifest[name]["supported"] is False
        assert terms.manifest[name]["minimum_protocol_version"] == "1.18"
        assert name not in terms.capabilities
    for name, entry in terms.manifest.items():
        assert entry["supported"] is (name in terms.capabilities)


def test_policies_are_not_claimed_from_a_server_that_has_none() -> None:
    for offered in (None, [], "try_cancel", ["abandon"], True):
        terms = negotiate_supervised(
            info(lambda _, c, offered=offered: c.update(prepared_local_activity_cancellation_policies=offered))  # type: ignore[misc]
        )
        assert "prepared_local_activity_cancellation_policies" not in terms.capabilities
        assert "prepared_local_activity_cancellation_policies" not in terms.manifest


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda i, c: i["worker_protocol"].update(version="1.19"), "worker_protocol.version >= 1.20"),
        (lambda i, c: i["worker_protocol"].update(version="2.0"), "worker_protocol.version >= 1.20"),
        (lambda i, c: i["worker_protocol"].update(version=1.20), "worker_protocol.version >= 1.20"),
        (lambda i, c: i["worker_protocol"].update(version="1.x"), "worker_protocol.version >= 1.20"),
        (lambda i, c: i["worker_protocol"].update(version="1.²0"), "worker_protocol.version >= 1.20"),
        (lambda i, c: i["control_plane"].update(version="3"), "control_plane.version 2"),
        (lambda i, c: i.pop("control_plane"), "control_plane.version 2"),
        (
            lambda i, c: i["control_plane"]["request_contract"].update(version=2),
            "control_plane.request_contract version 1",
        ),
        (
            lambda i, c: c.update(cooperative_cancellation="true"),
            "worker_protocol.server_capabilities.cooperative_cancellation",
        ),
        (
            lambda i, c: c.pop("prepared_local_activities"),
            "worker_protocol.server_capabilities.prepared_local_activities",
        ),
        (
            lambda i, c: c["worker_deregistration_fencing"].update(schema="v2"),
            "worker_protocol.server_capabilities.worker_deregistration_fencing (known contract)",
        ),
    ],
)
def test_what_is_missing_is_named(change: Callable[[Body, Body], None], missing: str) -> None:
    with pytest.raises(NegotiationRefused) as caught:
        negotiate_supervised(info(change))

    assert missing in caught.value.missing
    assert missing in str(caught.value)


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(NegotiationRefused) as caught:
        negotiate_supervised({})

    assert len(caught.value.missing) == 5


@pytest.mark.parametrize("version", ["1.20", "1.21", "1.100"])
def test_a_newer_minor_version_will_do(version: str) -> None:
    negotiate_supervised(info(lambda i, c: i["worker_protocol"].update(version=version)))


@pytest.mark.parametrize("fencing", [None, {"supported": False}, {"supported": "yes"}, []])
def test_a_server_without_fencing_is_left_unfenced(fencing: object) -> None:
    terms = negotiate_supervised(info(lambda i, c: c.update(worker_deregistration_fencing=fencing)))

    assert terms.fenced_deregistration is False


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(json_values)
def test_any_other_document_is_refused(document: object) -> None:
    with pytest.raises(NegotiationRefused):
        negotiate_supervised(document)


@pytest.mark.parametrize("profile", ["", "supervised,ordinary", "Supervised", ["supervised", "ordinary"]])
def test_an_unavailable_profile_names_what_is_available(profile: Any) -> None:
    with pytest.raises(UsageError, match="exactly one of: 'supervised', 'ordinary'"):
        check_profile(profile)


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
def test_both_profiles_are_available(profile: str) -> None:
    check_profile(profile)


ORDINARY = info(lambda info, capabilities: capabilities.update(local_activities={"supported": True}))


@pytest.mark.parametrize(
    ("offered", "spoken"), [("1.18", "1.18"), ("1.19", "1.19"), ("1.20", "1.19"), ("1.99", "1.19")]
)
def test_an_ordinary_worker_speaks_the_newest_version_of_its_profile(offered: str, spoken: str) -> None:
    terms = negotiate_ordinary({**ORDINARY, "worker_protocol": {**ORDINARY["worker_protocol"], "version": offered}})

    assert terms.protocol == spoken
    assert terms.manifest["local_activities"]["supported"] is True
    assert terms.manifest["worker_sessions"]["supported"] is False
    for name in ("cooperative_cancellation", "prepared_local_activities", "worker_sessions", "sticky_execution"):
        assert name not in terms.capabilities


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda info, _: info["worker_protocol"].update(version="1.17"), "worker_protocol.version >= 1.18"),
        (lambda info, _: info["worker_protocol"].update(version="2.19"), "worker_protocol.version >= 1.18"),
        (lambda _, able: able.update(local_activities={"supported": "yes"}), "local_activities"),
        (lambda _, able: able.pop("local_activities", None), "local_activities"),
        (lambda info, _: info["control_plane"].update(version="1"), "control_plane.version 2"),
    ],
)
def test_what_an_ordinary_worker_misses_is_named(change: Callable[[Body, Body], None], missing: str) -> None:
    changed = copy.deepcopy(ORDINARY)
    change(changed, changed["worker_protocol"]["server_capabilities"])

    with pytest.raises(NegotiationRefused, match="ordinary") as caught:
        negotiate_ordinary(changed)

    assert any(missing in name for name in caught.value.missing)
