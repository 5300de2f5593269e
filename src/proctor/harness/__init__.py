"""Kill-test your own handlers and workers: a fault proxy in front of any server, and faults inside the embedded one.

    async with open_fault_proxy("http://127.0.0.1:8080") as proxy:
        lost = proxy.add(DropResponse(), "outcome")          # the server commits the outcome, the worker never hears
        ...                                                  # run a worker against proxy.url
        print(*proxy.exchanges, sep="\\n")                   # what happened, and what was done to it

See docs/harness.md.
"""

from __future__ import annotations

from proctor.harness.exchanges import OPERATIONS, Exchange, Request
from proctor.harness.faults import (
    Cut,
    Delay,
    DropRequest,
    DropResponse,
    Duplicate,
    Fault,
    Hold,
    Match,
    Refuse,
    Rewrite,
    Rule,
)
from proctor.harness.proxy import FaultProxy, Partition, open_fault_proxy
from proctor.harness.refusals import REASONS, refusal
from proctor.harness.server_faults import ServerFaults

__all__ = [
    "OPERATIONS",
    "REASONS",
    "Cut",
    "Delay",
    "DropRequest",
    "DropResponse",
    "Duplicate",
    "Exchange",
    "Fault",
    "FaultProxy",
    "Hold",
    "Match",
    "Partition",
    "Refuse",
    "Request",
    "Rewrite",
    "Rule",
    "ServerFaults",
    "open_fault_proxy",
    "refusal",
]
