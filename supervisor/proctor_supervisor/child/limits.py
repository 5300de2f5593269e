"""Resource limits of one attempt, set by the child on itself: soft ones, so that a reused child can lift them."""

from __future__ import annotations

import resource

from proctor_supervisor import frames

_PAGE = resource.getpagesize()
_LIFTED = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)}


_applied = False


def apply(task: frames.TaskBody) -> None:
    """Set the limits of `task`; amounts of memory and processor time count from now."""
    global _applied
    _applied = bool(task.address_space_bytes or task.cpu_seconds or task.open_files)
    if task.address_space_bytes:
        _lower(resource.RLIMIT_AS, _mapped_bytes() + task.address_space_bytes)
    if task.cpu_seconds:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + task.cpu_seconds)
    if task.open_files:
        _lower(resource.RLIMIT_NOFILE, task.open_files)


def lift() -> None:
    """Take back what `apply` set."""
    if not _applied:
        return
    for kind, (soft, hard) in _LIFTED.items():
        if resource.getrlimit(kind)[0] != soft:
            resource.setrlimit(kind, (soft, hard))


def _lower(kind: int, wanted: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _mapped_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * _PAGE
