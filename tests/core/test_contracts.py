"""What a registration says of a workflow: the official SDK says the same, but for types."""

from __future__ import annotations

from typing import Any

import pytest

from portable_files import OFFICIAL, definitions, load
from proctor import workflow
from proctor.core.replay.authoring.contracts import command_contract


@workflow.defn(name="all")
class Everything:
    @workflow.signal("go")
    def go(self, first: int, second: str = "x", *rest: Any) -> None: ...

    @workflow.query("state")
    def state(self) -> None: ...

    @workflow.query("odd")
    def odd(self, value: Any = (1, 2)) -> None: ...

    @workflow.query("named")
    def named(self, *, must: int) -> None: ...

    @workflow.query("may")
    def may(self, *, might: int = 1) -> None: ...

    @staticmethod
    @workflow.update("set")
    def put(value: int | None) -> None: ...

    @workflow.update_validator("set")
    def check(self, value: int | None) -> None: ...

    async def run(self, ctx: Any) -> None: ...


def test_every_handler_is_declared_and_described_where_the_wire_can_say_how_it_is_called() -> None:
    contract = command_contract(workflow.definition_of(Everything))

    def parameter(name: str, position: int, **facts: Any) -> dict[str, Any]:
        required = not facts
        rest = {"variadic": False, "default_available": False, "default": None, "type": None, "allows_null": True}
        return {"name": name, "position": position, "required": required, **rest, **facts}

    assert contract == {
        "queries": ["may", "named", "odd", "state"],
        "query_contracts": [{"name": "may", "parameters": []}, {"name": "state", "parameters": []}],
        "signals": ["go"],
        "signal_contracts": [
            {
                "name": "go",
                "parameters": [
                    parameter("first", 0),
                    parameter("second", 1, default_available=True, default="x"),
                    parameter("rest", 2, variadic=True),
                ],
            }
        ],
        "updates": ["set"],
        "update_contracts": [{"name": "set", "parameters": [parameter("value", 0)]}],
        "update_validators": ["set"],
    }


def test_the_official_worker_declares_the_same() -> None:
    official = pytest.importorskip("durable_workflow.worker", reason="the official SDK is a development dependency")
    compared = 0
    for file in ("reference", "commands", "live"):
        theirs = vars(load(file, OFFICIAL))
        for definition in definitions(load(file)).values():
            ours = command_contract(definition)
            told = official._workflow_command_contract(theirs[definition.cls.__name__])
            assert _untyped(ours) == _untyped(told)
            compared += bool(ours["signals"] or ours["queries"] or ours["updates"])
    assert compared >= 5


def _untyped(contract: dict[str, Any]) -> dict[str, Any]:
    for kind in ("query", "signal", "update"):
        for called in contract[f"{kind}_contracts"]:
            for parameter in called["parameters"]:
                del parameter["type"], parameter["allows_null"]
    return contract
