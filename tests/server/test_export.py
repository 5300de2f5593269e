"""The exported history: whole, sealed, and accepted by the official verifier (control-plane.md §5)."""

from __future__ import annotations

import json
from typing import Any

from durable_workflow import history_bundle_verify as official
from hypothesis import given
from hypothesis import strategies as st

from proctor.server.rules.bundles import canonical, integrity
from server.test_children import child
from server.test_external_payloads import stored
from server.test_queued_activities import CALL, Hand, poll
from server.wire import ENVELOPE, TEXT, Wire, Worker, retries, side_effect

ODD = {
    "half": 0.5,
    "tiny": 1e-07,
    "wide": 1.2345678901234567e16,
    "huge": 1e22,
    "text": 'é "\\/\x7f\U0001f600',
    "no": -0.0,
}
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


async def export(wire: Wire, workflow_id: str = "wf") -> dict[str, Any]:
    run_id = (await wire.describe(workflow_id))["run_id"]
    return (await wire.control("GET", f"/workflows/{workflow_id}/runs/{run_id}/history/export")).ok()


def verified(bundle: dict[str, Any]) -> None:
    report = official.verify_bundle_json(json.dumps(bundle))
    assert report["findings"] == []
    assert report["status"] == "ok"
    assert report["integrity"]["checksum_matches"] is True


async def test_a_whole_run_is_exported_and_the_official_verifier_finds_nothing(wire: Wire, worker: Worker) -> None:
    hands = Worker(wire, "hands")
    await hands.register(supported_workflow_types=[], supported_activity_types=["charge"])
    await wire.start(input={"codec": "avro", "blob": TEXT}, memo={"place": "hé"})
    call = {**CALL, "retry_policy": retries(2, 0)}
    timer = {"type": "start_timer", "delay_seconds": 5}
    (await (await worker.poll()).complete(side_effect(), call, timer, child(workflow_type="other"))).ok()
    task = await poll(hands)
    assert task is not None
    (await Hand(hands, task).post("heartbeat", details=ODD, current=0.25)).ok()
    (await Hand(hands, task).fail()).ok()
    (await wire.control("POST", "/workflows/wf/signal/go", {"input": ENVELOPE})).ok(202)
    wire.clock.advance(5)
    (await (await worker.poll()).complete()).ok()

    bundle = await export(wire)

    verified(bundle)
    assert "control_plane" not in bundle
    assert (bundle["schema"], bundle["schema_version"]) == ("durable-workflow.v2.history-export", 1)
    assert bundle["history_complete"] is True
    assert (bundle["workflow"]["instance_id"], bundle["workflow"]["status"]) == ("wf", "completed")
    assert bundle["payloads"]["arguments"] == bundle["payloads"]["output"] == {"available": True, "data": TEXT}
    history = await wire.events()
    assert [(event["id"], event["type"], event["payload"]) for event in bundle["history_events"]] == [
        (event["id"], event["event_type"], event["payload"]) for event in history
    ]
    assert bundle["workflow"]["last_history_sequence"] == len(history)
    assert [(one["activity_type"], one["status"], one["attempt_number"]) for one in bundle["activities"]] == [
        ("charge", "open", 1)
    ]
    assert [(one["delay_seconds"], one["status"]) for one in bundle["timers"]] == [(5, "fired")]
    assert [one["signal_name"] for one in bundle["signals"]] == ["go"]
    assert {one["event_type"] for one in bundle["commands"]} == {"StartAccepted", "SignalReceived"}
    assert [one["workflow_run_id"] for one in bundle["links"]["children"]] == [
        event["payload"]["child_workflow_run_id"] for event in history if event["event_type"] == "ChildRunStarted"
    ]


async def test_an_open_run_says_that_more_will_follow(wire: Wire) -> None:
    await wire.start()
    bundle = await export(wire)
    verified(bundle)
    assert bundle["history_complete"] is False
    assert bundle["payloads"]["output"] == {"available": False, "data": None}
    unknown = await wire.control("GET", "/workflows/wf/runs/R/history/export")
    unknown.refused(404, "run_not_found")


async def test_a_changed_bundle_is_found_out(wire: Wire) -> None:
    await wire.start()
    bundle = await export(wire)
    bundle["history_events"][0]["payload"]["workflow_type"] = "another"
    assert official.verify_bundle_json(json.dumps(bundle))["integrity"]["checksum_matches"] is False


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4))
def test_the_seal_is_what_the_official_verifier_computes(document: dict[str, Any]) -> None:
    assert canonical(document).isascii()
    theirs = official._canonicalize(json.loads(json.dumps(document)))
    assert canonical(document) == theirs
    assert integrity(document)["canonicalization"] == "json-recursive-ksort-v1"


async def test_payloads_that_are_stored_outside_are_exported_as_references(wire: Wire, worker: Worker) -> None:
    reference = await stored(wire)
    await wire.start(input=reference)
    (await wire.control("POST", "/workflows/wf/signal/go", {"input": reference})).ok(202)
    (await wire.control("POST", "/workflows/wf/update/set", {"input": reference})).ok(202)
    finish = {"type": "complete_workflow", "result": reference}
    (await (await worker.poll()).complete({**CALL, "arguments": reference}, finish)).ok()
    bundle = await export(wire)
    verified(bundle)
    payloads = bundle["payloads"]
    assert [payloads[name] for name in ("arguments", "output")] == 2 * [{"available": True, "data": reference}]
