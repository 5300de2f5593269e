"""Messages between owner and supervisor process, one per datagram. Pure; standard library only.

Owns names, fields and text form. Both ends are always of the same release, so fields travel by position. Neither
handler arguments nor results pass here; descriptors travel beside `Forked` as ancillary data.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIZE_LIMIT = 128 * 1024
"""Most bytes of one message; larger than any message can become, since stacks are bounded."""


# -- owner to supervisor --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """The first message: where to import from, what to preload, how children are set up.

    With `exec_children` nothing is preloaded in the supervisor process: each child is exec'd and preloads for itself.
    """

    sys_path: list[str]
    preload: list[str]
    max_payload_bytes: int
    reuse_growth_bytes: int
    exec_children: bool


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork one standby child under the number `child`."""

    child: int


@dataclass(frozen=True, slots=True)
class Arm:
    """A task is about to be sent to `child`: hold these deadlines (CLOCK_MONOTONIC seconds) and this policy.

    `attempt` is the attempt's serial number in this supervisor, from 1. `memory_bytes` bounds the resident memory of
    the whole tree; `keep_descendants` spares what a returning handler leaves behind.
    """

    child: int
    attempt: int
    started_at: float
    attempt_at: float | None
    total_at: float | None
    authority_at: float | None
    heartbeat_timeout: float | None
    memory_bytes: int | None
    keep_descendants: bool
    notice_grace: float
    raise_grace: float
    stack_budget: float
    kill_budget: float


@dataclass(frozen=True, slots=True)
class Disarm:
    """The attempt on `child` has ended and the child lives on: its deadlines are void."""

    child: int


@dataclass(frozen=True, slots=True)
class Authority:
    """The right of `child` to run is now known up to `authority_at`."""

    child: int
    authority_at: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop `attempt` on `child` for `reason` under this policy; `at_once` gives it no grace."""

    child: int
    attempt: int
    reason: str
    detail: str
    at_once: bool
    notice_grace: float
    raise_grace: float
    stack_budget: float
    kill_budget: float


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with `Pong`: whoever does not is frozen, and holds no deadline."""


# -- supervisor to owner --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Preloading is done and forking is safe; `pid` is the supervisor's."""

    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The supervisor will not start; `module` is the preloaded module at fault, or None.

    `unsafe` says that the module can be imported, but makes forking unsafe.
    """

    message: str
    module: str | None
    unsafe: bool


@dataclass(frozen=True, slots=True)
class Forked:
    """A standby child exists. Its task socket, beat pipe, stdout, stderr and pidfd travel beside this message."""

    child: int
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """No child could be forked."""

    child: int
    error: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """A ladder step was taken on `child` at the CLOCK_MONOTONIC instant `at`, for whoever watches."""

    child: int
    step: str
    at: float


@dataclass(frozen=True, slots=True)
class Settled:
    """`child` and every process below it are gone.

    `begun` is the serial number of the attempt that the child began last. `stop` is None, or the mapping
    ``{attempt, reason, detail, begun_at, steps: [[step, at]], stack, started_at}``. `descendants` holds
    ``[pid, started_at]`` of processes that were killed below the child, the first some hundred of `descendants_count`;
    `kept` the pids of those that live on.
    `oom_suspected` says that the kernel killed something for want of memory around the time of this death.
    """

    child: int
    exit_code: int | None
    signal: int | None
    sent_by_us: bool
    begun: int
    beats: int
    dropped: int
    user_seconds: float
    system_seconds: float
    max_rss_bytes: int
    settled_at: float
    oom_suspected: bool
    kept: list[int]
    descendants: list[list[int]]
    descendants_count: int
    stop: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to `Ping`."""


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """`child` was killed and is not proven gone within its kill budget."""

    child: int
    pid: int


Message = (
    Open
    | Fork
    | Arm
    | Disarm
    | Authority
    | Stop
    | Ping
    | Pong
    | Ready
    | Refused
    | Forked
    | ForkFailed
    | Stepped
    | Settled
    | Unconfirmed
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Message.__args__}
_FIELDS = {kind: tuple(one.name for one in dataclasses.fields(kind)) for kind in _KINDS.values()}


def encode(message: Message) -> bytes:
    """Give the datagram of `message`."""
    kind = type(message)
    values = [getattr(message, name) for name in _FIELDS[kind]]
    return json.dumps([kind.__name__, *values], separators=(",", ":")).encode()


def decode(datagram: bytes) -> Message:
    """Read a datagram. Raises ValueError for anything that is no message."""
    try:
        name, *values = json.loads(datagram)
        message: Message = _KINDS[name](*values)
    except (KeyError, TypeError) as exc:
        raise ValueError(f"not a supervisor message: {datagram[:80]!r}") from exc
    return message
