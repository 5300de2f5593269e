"""What the readers of all commands share: the limits a batch is checked against, and a checked command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Grammar:
    """What checking a batch depends on: the payload limit in bytes and the protocol 1.x of the request."""

    limit: int
    minor: int = 20


@dataclass(frozen=True, slots=True)
class Command:
    """One checked command; what `facts` are is the business of the module that read them."""

    type: str
    facts: Any

    @property
    def is_numbered(self) -> bool:
        """Say whether the command takes a durable number."""
        return self.type not in {"cancel_selection_operation", "complete_update", "fail_update"}
