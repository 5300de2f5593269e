"""Importing handler modules before the first fork, and judging whether forking is still safe afterwards.

A forked copy of a process with a second thread may hold a lock that nobody will ever release; a copied connection is
spoken on by two processes. So after each module the process must still have one thread, no new socket, no process
below it, and hold no lock. The same is asked before the first one: an interpreter can import at its start, too.
"""

from __future__ import annotations

import _thread
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType, ModuleType

from proctor_supervisor.platform import linux


class PreloadFailed(Exception):
    """A module that cannot be preloaded; the text says why and what to do, `module` names it.

    `unsafe`: it was imported, but forking is unsafe now.
    """

    def __init__(self, message: str, module: str, *, unsafe: bool) -> None:
        super().__init__(message)
        self.module = module
        self.unsafe = unsafe


def preload(modules: Sequence[str], control: socket.socket) -> None:
    """Import `modules` in order, in a process that has `control` and nothing else open. Raises PreloadFailed."""
    before = {*_sockets(["0", "1", "2"]), *_sockets([str(control.fileno())])}
    known = set(sys.modules)
    reason = _why_unsafe(before, known)
    if reason:
        raise PreloadFailed(f"the interpreter at its start (sitecustomize, a .pth file) {reason}", "site", unsafe=True)
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # SystemExit, too: a script without a main guard
            where = traceback.format_exception_only(exc)[-1].strip()
            raise PreloadFailed(f"module '{name}' cannot be imported: {where}", name, unsafe=False) from exc
        reason = _why_unsafe(before, known) if _is_open(control) else _CLOSED
        if reason:
            raise PreloadFailed(f"importing module '{name}' {reason}", name, unsafe=True)
        known = set(sys.modules)


_CLOSED = "closed the descriptors of the supervisor process; leave the module out of `preload`."


def _is_open(control: socket.socket) -> bool:
    try:
        control.getpeername()
    except OSError:
        return False
    return True


def silence() -> None:
    """Take back what modules have done about signals: children begin with plain ones, and this process has its own.

    A handler of theirs could raise in the event loop here, and a blocked SIGCHLD would make it deaf.
    """
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    signal.set_wakeup_fd(-1)
    for number in linux.settable_signals():
        if linux.disposition_of(number) != linux.plain_disposition(number):
            signal.signal(number, signal.SIG_IGN)
    linux.unblock_signals()


def freeze() -> None:
    """Settle memory before the first fork: whatever a process writes to after it is copied page by page."""
    gc.collect()
    gc.freeze()  # later collections leave the pages alone, so children go on sharing them
    gc.disable()  # the zygote makes no cycles; its children switch it on again


def _why_unsafe(sockets_before: set[str], known: Container[str]) -> str:
    """Say what the import has left behind that a fork must not copy, and what to do; empty when nothing."""
    me = os.getpid()
    threads = linux.thread_count(me) - 1
    if threads:
        return (
            f"started {threads} thread(s); children forked beside a thread can deadlock. Start threads inside the "
            f"handler, or leave the module out of `preload`."
        )
    opened = len(_sockets(os.listdir("/proc/self/fd")) - sockets_before)
    if opened:
        return (
            f"opened {opened} socket(s); every child would share them. Connect inside the handler, or leave the "
            f"module out of `preload`."
        )
    started = len(linux.children_of(me))
    if started:
        return (
            f"started {started} process(es) in the supervisor process. Start them inside the handler, or leave the "
            f"module out of `preload`."
        )
    held = _held_lock(known)
    if held:
        return (
            f"left the lock '{held}' held; in a child nobody would ever release it. Release it, or leave the module "
            f"out of `preload`."
        )
    if linux.holds_file_lock(me):
        return (
            "locked a file; every child would seem to hold that lock. Lock inside the handler, or leave the module "
            "out of `preload`."
        )
    return ""


def _held_lock(known: Container[str]) -> str:
    """Name a lock that is held, and reachable as a variable of a new module or an attribute of one; else empty.

    With one thread in the process nobody is about to release it.
    """
    for module_name, module in list(sys.modules.items()):
        if module_name in known or module_name == "threading" or not isinstance(module, ModuleType):
            continue  # what `threading` holds stands for the running main thread, and is made anew after a fork
        for name, value in list(vars(module).items()):
            if _is_held(value):
                return f"{module_name}.{name}"
            if isinstance(value, ModuleType):
                continue
            for below, inner in list(_attributes(value).items()):
                if _is_held(inner):
                    return f"{module_name}.{name}.{below}"
    return ""


def _attributes(value: object) -> Mapping[str, object]:
    """What `value` holds itself; nothing of its own is called, since a lazy object would wake up."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) in (dict, MappingProxyType) else {}


def _is_held(value: object) -> bool:
    kind = type(value)
    if kind is _LOCK:
        return bool(value.locked())  # type: ignore[attr-defined]
    return kind is _RLOCK and bool(value._is_owned())  # type: ignore[attr-defined]


_LOCK, _RLOCK = _thread.LockType, _thread.RLock  # threading's own; it is not loaded itself


def _sockets(descriptors: Sequence[str]) -> set[str]:
    """Name the sockets among some descriptors of this process."""
    found: set[str] = set()
    for name in descriptors:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
