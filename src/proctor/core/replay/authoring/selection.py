"""Selections as workflow code sees them: the command, its result, and the handles of its members (replay.md §6).

Which member won, and whether a handle's operation has ended, is read from history by `selecting`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.core.replay.authoring.commands import Command
from proctor.core.replay.recorded.steps import is_selection_key


@dataclass(frozen=True, slots=True, eq=False)
class Selection(Command["SelectionResult"]):
    """Start the members side by side and wait for the first to end."""

    operations: tuple[tuple[int | str, Any], ...]

    @classmethod
    def of(cls, operations: Mapping[int | str, Any] | Sequence[Any]) -> Selection:
        """Check keys and members; TypeError or ValueError for a wrong one."""
        if isinstance(operations, Mapping):
            entries = tuple(operations.items())
        elif isinstance(operations, Sequence) and not isinstance(operations, (str, bytes)):
            entries = tuple(enumerate(operations))
        else:
            raise TypeError(f"select takes a mapping or a list, not {type(operations).__qualname__}")
        if not entries:
            raise ValueError("select has at least one member")
        for key, member in entries:
            if isinstance(key, bool) or not isinstance(key, (int, str)):
                raise TypeError(f"the key of a selection member is a text or a number, not {key!r}")
            if not is_selection_key(key):
                raise ValueError(f"the key of a selection member is a text or a number from 0, not {key!r}")
            if isinstance(member, list) and not member:
                raise ValueError(f"selection member {key!r} is an empty list")
        return cls(entries)

    def __str__(self) -> str:
        return f"selection of {', '.join(repr(key) for key, _ in self.operations)}"


@dataclass(frozen=True, slots=True)
class DurableOperationHandle:
    """A member of a selection; awaiting it gives its result, whenever it ends.

    `identity` is the server's id of the operation once history tells it.
    """

    key: int | str
    index: int
    kind: str
    identity: str
    base_sequence: int
    size: int
    selection_group_id: str
    operation: Any = field(compare=False, repr=False)

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)

    def __str__(self) -> str:
        return f"handle of selection member {self.key!r}"

    def await_result(self) -> DurableOperationHandle:
        """Give what to await (or yield) for this member's result."""
        return self

    def cancel(self) -> CancelOperation:
        """Ask for its cancellation; await (or yield) it. A member that has ended keeps its result."""
        return CancelOperation(self)


@dataclass(frozen=True, slots=True, eq=False)
class CancelOperation(Command[None]):
    """Cancel one member of a selection that is still running."""

    handle: DurableOperationHandle

    def __str__(self) -> str:
        return f"cancellation of selection member {self.handle.key!r}"

    def to_wire(self) -> dict[str, Any]:
        """Give the ``cancel_selection_operation`` command."""
        return {"type": "cancel_selection_operation"} | identity_fields(self.handle)


def identity_fields(handle: DurableOperationHandle) -> dict[str, Any]:
    """Give the fields by which the wire names a member of a selection."""
    return {
        "selection_group_id": handle.selection_group_id,
        "member_key": handle.key,
        "member_index": handle.index,
        "member_base_sequence": handle.base_sequence,
        "member_size": handle.size,
        "operation_kind": handle.kind,
        "operation_identity": handle.identity,
    }


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """The member that won. `handles` has all members by key, `winner` is one of them."""

    key: int | str
    index: int
    kind: str
    identity: str
    value: Any
    failure: BaseException | None
    winner: DurableOperationHandle
    handles: Mapping[int | str, DurableOperationHandle]

    @property
    def succeeded(self) -> bool:
        """Whether the winner ended with a result."""
        return self.failure is None

    def result(self) -> Any:
        """Give the winner's result, or raise its failure."""
        if self.failure is not None:
            raise self.failure
        return self.value

    def remaining(self) -> dict[int | str, DurableOperationHandle]:
        """Give the handles of the members that did not win."""
        return {key: handle for key, handle in self.handles.items() if key != self.key}
