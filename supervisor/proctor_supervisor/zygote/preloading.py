"""Importing handler modules before the first fork, and judging whether forking is still safe afterwards.

A forked copy of a process with a second thread may hold a lock that nobody will ever release; a copied connection is
spoken on by two processes. So after each module the process must still have one thread and no new socket.
"""

from __future__ import annotations

import gc
import importlib
import os
import traceback
from collections.abc import Sequence

from proctor_supervisor.platform import linux


class PreloadFailed(Exception):
    """A module that cannot be preloaded; the text says why and what to do, `module` names it.

    `unsafe`: it was imported, but forking is unsafe now.
    """

    def __init__(self, message: str, module: str, *, unsafe: bool) -> None:
        super().__init__(message)
        self.module = module
        self.unsafe = unsafe


def preload(modules: Sequence[str]) -> None:
    """Import `modules` in order and freeze what they allocated. Raises PreloadFailed."""
    before = _open_sockets()
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as exc:
            where = traceback.format_exception(exc)[-1].strip()
            raise PreloadFailed(f"module '{name}' cannot be imported: {where}", name, unsafe=False) from exc
        threads = linux.thread_count(os.getpid()) - 1
        if threads:
            raise PreloadFailed(
                f"importing module '{name}' started {threads} thread(s); children forked beside a thread can "
                f"deadlock. Start threads inside the handler, or leave the module out of `preload`.",
                name,
                unsafe=True,
            )
        opened = _open_sockets() - before
        if opened:
            raise PreloadFailed(
                f"importing module '{name}' opened {len(opened)} socket(s); every child would share them. "
                f"Connect inside the handler, or leave the module out of `preload`.",
                name,
                unsafe=True,
            )
    gc.collect()
    gc.freeze()  # later collections leave the preloaded pages alone, so children go on sharing them
    gc.disable()  # the zygote makes no cycles; its children switch it on again


def _open_sockets() -> set[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
