"""Messages between owner and supervisor process, one per datagram. Pure; standard library only.

Owns names, fields and binary form. Both ends are always of the same release. Neither handler arguments nor results
pass here; descriptors travel beside `Forked` as ancillary data. Instants are CLOCK_MONOTONIC seconds, and infinity
stands for "never".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import Any, NamedTuple

SIZE_LIMIT = 128 * 1024
"""Most bytes of one message; larger than any message can become, since stacks are bounded."""


# -- owner to supervisor --------------------------------------------------------------------------------------


class Open(NamedTuple):
    """The first message: where to import from, what to preload, how children are set up.

    With `exec_children` nothing is preloaded in the supervisor process: each child is exec'd and preloads for itself.
    """

    max_payload_bytes: int
    reuse_growth_bytes: int
    exec_children: bool
    sys_path: list[str]
    preload: list[str]


class Fork(NamedTuple):
    """Fork one standby child under the number `child`."""

    child: int


class Arm(NamedTuple):
    """A task is about to be sent to `child`: hold these deadlines and this policy.

    `attempt` is the attempt's serial number in this supervisor, from 1. `memory_bytes` bounds the resident memory of
    the whole tree, 0 does not; `keep_descendants` spares what a returning handler leaves behind.
    """

    child: int
    attempt: int
    started_at: float
    attempt_at: float
    total_at: float
    authority_at: float
    heartbeat_timeout: float
    memory_bytes: int
    keep_descendants: bool
    notice_grace: float
    raise_grace: float
    stack_budget: float
    kill_budget: float


class Disarm(NamedTuple):
    """The attempt on `child` has ended and the child lives on: its deadlines are void."""

    child: int


class Authority(NamedTuple):
    """The right of `child` to run is now known up to `authority_at`."""

    child: int
    authority_at: float


class Stop(NamedTuple):
    """Stop `attempt` on `child` for `reason` under this policy; `at_once` gives it no grace."""

    child: int
    attempt: int
    at_once: bool
    notice_grace: float
    raise_grace: float
    stack_budget: float
    kill_budget: float
    reason: str
    detail: str


class Ping(NamedTuple):
    """Answer with `Pong`: whoever does not is frozen, and holds no deadline."""


# -- supervisor to owner --------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """Preloading is done and forking is safe; `pid` is the supervisor's."""

    pid: int


class Refused(NamedTuple):
    """The supervisor will not start; `module` is the preloaded module at fault, or None.

    `unsafe` says that the module can be imported, but makes forking unsafe.
    """

    unsafe: bool
    message: str
    module: str | None


class Forked(NamedTuple):
    """A standby child exists. Its task socket, beat pipe, stdout, stderr and pidfd travel beside this message."""

    child: int
    pid: int


class ForkFailed(NamedTuple):
    """No child could be forked."""

    child: int
    error: str


class Stepped(NamedTuple):
    """A ladder step was taken on `child` at the instant `at`, for whoever watches."""

    child: int
    at: float
    step: str


class Settled(NamedTuple):
    """`child` and every process below it are gone.

    `status` is its wait status. `begun` is the serial number of the attempt that the child began last.
    `oom_suspected` says that the kernel killed something for want of memory around the time of this death. `kept`
    holds the pids of the descendants that live on, `descendants` the ``[pid, started_at]`` of those that were killed,
    the first some hundred of `descendants_count`.
    `stop` is None, or the mapping ``{attempt, reason, detail, begun_at, steps: [[step, at]], stack, started_at}``.
    """

    child: int
    status: int
    sent_by_us: bool
    begun: int
    beats: int
    dropped: int
    user_seconds: float
    system_seconds: float
    max_rss_bytes: int
    settled_at: float
    oom_suspected: bool
    descendants_count: int = 0
    kept: Sequence[int] = ()
    descendants: Sequence[Sequence[int]] = ()
    stop: Mapping[str, Any] | None = None


class Pong(NamedTuple):
    """The answer to `Ping`."""


class Unconfirmed(NamedTuple):
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

# The first fields of each kind travel in a fixed layout behind its code; what follows them travels as JSON, and not at
# all when it has its default values. So what is sent for each attempt never meets JSON.
_LAYOUTS: dict[type[Any], str] = {
    Open: "QQ?",
    Fork: "I",
    Arm: "IQdddddQ?dddd",
    Disarm: "I",
    Authority: "Id",
    Stop: "IQ?dddd",
    Ping: "",
    Pong: "",
    Ready: "I",
    Refused: "?",
    Forked: "II",
    ForkFailed: "I",
    Stepped: "Id",
    Settled: "II?QQQddQd?I",
    Unconfirmed: "II",
}


class _Form(NamedTuple):
    """How one kind of message is written: `fixed` fields by `layout`, behind `code`; `usual` need not follow."""

    kind: type[Any]
    code: int
    layout: Struct
    fixed: int
    usual: tuple[Any, ...]


def _form(code: int, kind: type[Any], layout: str) -> _Form:
    usual = tuple(kind._field_defaults[name] for name in kind._fields[len(layout) :] if name in kind._field_defaults)
    return _Form(kind, code, Struct("<B" + layout), len(layout), usual)


_FORMS = [_form(code, kind, layout) for code, (kind, layout) in enumerate(_LAYOUTS.items())]
_FORM_OF = {form.kind: form for form in _FORMS}


def encode(message: Message) -> bytes:
    """Give the datagram of `message`."""
    _, code, layout, fixed, usual = _FORM_OF[type(message)]
    datagram = layout.pack(code, *message[:fixed])
    rest = message[fixed:]
    return datagram if rest == usual else datagram + json.dumps(rest).encode()


def decode(datagram: bytes | memoryview) -> Message:
    """Read a datagram. Raises ValueError for anything that is no message."""
    try:
        kind, _, layout, _, rest = _FORMS[datagram[0]]
        _, *values = layout.unpack_from(datagram)
        if len(datagram) > layout.size:
            rest = json.loads(bytes(datagram[layout.size :]))
        message: Message = kind(*values, *rest)
    except (IndexError, TypeError, error) as exc:
        raise ValueError(f"not a supervisor message: {bytes(datagram[:80])!r}") from exc
    return message
