"""Linux facts and calls: prctl, pidfd, /proc. Standard library only; used by zygote, child and owner.

Owns every constant and path that is Linux's own. Decides nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

from proctor_supervisor.errors import UnsupportedPlatform

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_SYS_CLOSE_RANGE = 436  # the same on every architecture; not every interpreter was built to know it
_LAST_DESCRIPTOR = ctypes.c_uint(0xFFFF_FFFF)

_libc = ctypes.CDLL(None, use_errno=True)

# Real-time signals: no library claims them, and exec puts their disposition back to default in a handler's own
# subprocesses.
RAISE_SIGNAL = signal.SIGRTMIN + 8
DUMP_SIGNAL = signal.SIGRTMIN + 9

_SO_COOKIE = 57
_OOM_SCORE = "/proc/self/oom_score_adj"

ZYGOTE_NAME = b"proctor-superv"
CHILD_NAME = b"proctor-child"
IGNORED_SIGNALS = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""What every Python program ignores, and reports as OSError instead."""

# The C functions below `signal` do not turn each answer into an enum; they run for each attempt.
_c_signal = importlib.import_module("_signal")
_set_mask: Callable[[int, Any], Any] = _c_signal.pthread_sigmask
_SIG_SETMASK = int(signal.SIG_SETMASK)
_set_disposition: Callable[[int, Any], Any] = _c_signal.signal
disposition_of: Callable[[int], object] = _c_signal.getsignal


def settable_signals() -> set[int]:
    """Every signal whose disposition a program may choose."""
    return {int(number) for number in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}


def plain_disposition(number: int) -> object:
    """What a child does on a signal: nothing where `IGNORED_SIGNALS` says so, else what the kernel does by default."""
    return _c_signal.SIG_IGN if number in IGNORED_SIGNALS else _c_signal.SIG_DFL


def restore(number: int) -> None:
    """Give a signal its `plain_disposition`."""
    _set_disposition(number, plain_disposition(number))


def signal_mask() -> set[int]:
    """The signals that this thread blocks."""
    return set(_set_mask(signal.SIG_BLOCK, ()))


def unblock_signals() -> None:
    """Empty the signal mask of this thread."""
    _set_mask(_SIG_SETMASK, ())


def require_facilities() -> None:
    """Raise UnsupportedPlatform when the kernel lacks pidfds or /proc is not mounted."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as exc:
        raise UnsupportedPlatform(f"this kernel has no pidfd_open ({exc}); Linux 5.4 or newer is needed") from exc
    if not os.path.exists("/proc/self/stat"):
        raise UnsupportedPlatform("/proc is not mounted here; without it no process tree can be proven gone")


_call_prctl = _libc.prctl


def _prctl(option: int, argument: int | bytes) -> None:
    if _call_prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int, death_signal: int) -> None:
    """Ask the kernel to send `death_signal` to this process when the thread that forked it ends; 0 asks for nothing.

    Closes the race with a parent that died before the call: then the parent is another one by now, and this process
    exits at once.
    """
    _prctl(_PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper(*, on: bool = True) -> None:
    """Keep every descendant in this process's subtree, daemonised ones too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def set_name(name: bytes) -> None:
    """Set the short name shown by ps and top (at most 15 bytes)."""
    _prctl(_PR_SET_NAME, name)


def socket_cookie(one: socket.socket) -> bytes:
    """Give what names a socket for as long as the system runs. Raises OSError for what is no socket."""
    return one.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    if _libc.syscall(_SYS_CLOSE_RANGE, first, _LAST_DESCRIPTOR, 0) != 0:  # a kernel before 5.9
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= first:
                with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                    os.close(int(name))


def oom_score() -> bytes:
    """How much sooner than others the kernel chooses this process when memory runs out, as it is written."""
    return _read(_OOM_SCORE)


def set_oom_score(score: bytes) -> None:
    """Change that; refused silently by some boxes."""
    try:
        descriptor = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(descriptor, score)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """Read a file of /proc with three system calls; `open` makes twice as many, and this runs for each attempt."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(descriptor, 65536)
        while len(text) and len(text) % 4096 == 0 and (more := os.read(descriptor, 65536)):
            text += more
        return text
    finally:
        os.close(descriptor)


class ProcessStat(NamedTuple):
    """What /proc says of one process. `started_at` is in clock ticks since boot."""

    state: str
    parent: int
    threads: int
    started_at: int

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more. A zombie with threads is one whose main thread alone has ended."""
        return self.state in "ZX" and self.threads <= 1


def read_stat(pid: int) -> ProcessStat | None:
    """Read /proc/PID/stat; None when there is no such process."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold anything, parentheses too: count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(fields[0].decode(), int(fields[1]), int(fields[17]), int(fields[19]))


def holds_pipe(pid: int, number: int, pipe: int) -> bool:
    """Whether descriptor `number` of a process is an end of the same pipe as `pipe` is here.

    Asks for the name only: to look at a file itself could take as long as a hung file system likes.
    """
    try:
        name = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return False
    return name == f"pipe:[{os.fstat(pipe).st_ino}]"


def die_with_peer(one: socket.socket) -> None:
    """Have the kernel kill this process as soon as the other end of a silent socket is gone, whatever it does then.

    In effect until `live_without_peer`.
    """
    fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(one, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):
        if not one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            os._exit(1)  # it was gone before


def live_without_peer(one: socket.socket) -> None:
    """The reverse of `die_with_peer`."""
    fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) & ~os.O_ASYNC)


def thread_count(pid: int) -> int:
    """How many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def children_of(pid: int) -> list[int]:
    """The direct children of a process, of all its threads; empty when it is gone."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for thread in threads:
        try:
            found.extend(int(one) for one in _read(f"/proc/{pid}/task/{thread}/children").split())
        except FileNotFoundError:
            if not os.path.exists(f"/proc/{pid}/task/{thread}"):
                continue
            return _children_by_scan(pid)  # a kernel without CONFIG_PROC_CHILDREN
        except ProcessLookupError:
            continue
    return found


def zombie_children(sessions: Container[int], name: bytes) -> list[int]:
    """The children of this process that wait to be collected and belonged to one of `sessions`, or had this `name`."""
    found = []
    for pid in children_of(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            before, _, after = _read(f"/proc/{pid}/stat").rpartition(b") ")
            state, _, _, session = after.split()[:4]
            if state == b"Z" and (int(session) in sessions or before.endswith(b"(" + name)):
                found.append(pid)
    return found


class OwnChildren:
    """The children of this process, which has one thread, at one system call a look."""

    def __init__(self) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._file = -1  # a kernel without CONFIG_PROC_CHILDREN

    def look(self) -> list[int]:
        """Give their process ids, zombies included."""
        if self._file < 0:
            return _children_by_scan(os.getpid())
        text = b""
        while part := os.pread(self._file, 65536, len(text)):
            text += part
            if len(part) < _SEQ_PAGE:
                break
        return [int(one) for one in text.split()]


def _children_by_scan(parent: int) -> list[int]:
    return [pid for pid in all_pids() if (stat := read_stat(pid)) is not None and stat.parent == parent]


_SEQ_PAGE = 4000  # the kernel fills a page of about 4096 bytes per read; a shorter part is the last
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


def below(root: int) -> list[int]:
    """Every descendant of a process, nearest first."""
    found: list[int] = []
    layer = children_of(root)
    while layer:
        found.extend(layer)
        layer = [pid for parent in layer for pid in children_of(parent)]
    return found


def has_environment(pid: int, entry: bytes) -> bool:
    """Whether a live process was started with ``NAME=value`` in its environment; False for one we may not look at."""
    return entry in _environment(pid)


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def pids_with_environment(entry: bytes, *, since: int) -> list[int]:
    """Every live process that `has_environment`; a look at the whole process table, for emergencies.

    One pass is not enough: a process can fork behind it and end before it is looked at, and has no environment while an
    exec is under way. So the table is listed again until it names nobody new, for a second if somebody forks all the
    time; and whoever started at `since` (kernel ticks since boot) or later is waited for while it is in an exec, on a
    busy machine for three seconds.
    """
    found: list[int] = []
    seen: set[int] = set()
    began = time.monotonic()
    while fresh := [pid for pid in all_pids() if pid not in seen]:
        passed = time.monotonic() - began
        in_exec = 0
        for pid in fresh:
            environment = _environment(pid)
            if not any(environment) and _is_in_exec(pid, since):
                in_exec += 1
                continue
            seen.add(pid)
            if entry in environment:
                found.append(pid)
        only_execs = in_exec == len(fresh)
        if passed > (_EXEC_SECONDS if only_execs else _SCAN_SECONDS):
            break
        if only_execs:
            time.sleep(0.001)
    return found


_SCAN_SECONDS = 1.0
_EXEC_SECONDS = 3.0
_PF_KTHREAD = 0x00200000


def _is_in_exec(pid: int, since: int) -> bool:
    """Whether a process without an environment is about to get one: its end has no address yet in the new memory."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return False
    is_process = fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_KTHREAD
    return is_process and int(fields[19]) >= since and int(fields[48]) == 0


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it booted."""
    with open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def holds_file_lock(pid: int) -> bool:
    """Whether a process has locked a file (flock, lockf or fcntl)."""
    try:
        with open("/proc/locks", "rb") as file:
            return any(len(fields := line.split()) > 4 and fields[-4] == b"%d" % pid for line in file)
    except FileNotFoundError:  # a kernel, or a sandbox, that does not say
        return False


def all_pids() -> Iterator[int]:
    """Every process id that /proc shows."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def has_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended (a zombie counts: it runs no more)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
