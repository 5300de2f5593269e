"""Kill-test your own handlers and workers: a fault proxy in front of any server, and faults inside the embedded one.

    async with open_fault_proxy("http://127.0.0.1:8080") as proxy:
        lost = proxy.add(DropResponse(), "outcome")          # the server commits the outcome, the worker never hears
        ...                                                  # run a worker against proxy.url
        print(*proxy.exchanges, sep="\\n")                   # what happened, and what was done to it

See docs/harness.md. Names are loaded on first use: the supervisor process, which loads our own handler, needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor.harness.exchanges import OPERATIONS as OPERATIONS
    from proctor.harness.exchanges import Exchange as Exchange
    from proctor.harness.exchanges import Request as Request
    from proctor.harness.faults import Cut as Cut
    from proctor.harness.faults import Delay as Delay
    from proctor.harness.faults import DropRequest as DropRequest
    from proctor.harness.faults import DropResponse as DropResponse
    from proctor.harness.faults import Duplicate as Duplicate
    from proctor.harness.faults import Fault as Fault
    from proctor.harness.faults import Hold as Hold
    from proctor.harness.faults import Match as Match
    from proctor.harness.faults import Refuse as Refuse
    from proctor.harness.faults import Rewrite as Rewrite
    from proctor.harness.faults import Rule as Rule
    from proctor.harness.proxy import FaultProxy as FaultProxy
    from proctor.harness.proxy import Partition as Partition
    from proctor.harness.proxy import open_fault_proxy as open_fault_proxy
    from proctor.harness.refusals import REASONS as REASONS
    from proctor.harness.refusals import refusal as refusal
    from proctor.harness.rounds import KillReport as KillReport
    from proctor.harness.rounds import Round as Round
    from proctor.harness.rounds import kill_test as kill_test
    from proctor.harness.scenarios import SCENARIOS as SCENARIOS
    from proctor.harness.server_faults import ServerFaults as ServerFaults
    from proctor.harness.subject import Subject as Subject

_HOMES = {
    "exchanges": (
        "OPERATIONS",
        "Exchange",
        "Request",
    ),
    "faults": (
        "Cut",
        "Delay",
        "DropRequest",
        "DropResponse",
        "Duplicate",
        "Fault",
        "Hold",
        "Match",
        "Refuse",
        "Rewrite",
        "Rule",
    ),
    "proxy": (
        "FaultProxy",
        "Partition",
        "open_fault_proxy",
    ),
    "refusals": (
        "REASONS",
        "refusal",
    ),
    "rounds": (
        "KillReport",
        "Round",
        "kill_test",
    ),
    "scenarios": ("SCENARIOS",),
    "server_faults": ("ServerFaults",),
    "subject": ("Subject",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - the names above, once


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
