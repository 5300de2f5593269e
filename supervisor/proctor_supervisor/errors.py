"""Every exception the supervisor raises towards its owner.

The tree::

    SupervisorError
    ├── UnsupportedPlatform     this system lacks what a proven stop needs
    ├── StartRefused            the supervisor process did not start, or a preloaded module makes forking unsafe
    ├── TaskRefused             a task that cannot be sent: unknown shape, too large, a handler that cannot travel
    ├── SupervisorClosed        `run` was called after the supervisor was closed
    └── StopUnconfirmed         a child could not be proven gone within its kill budget

What a handler did is never an exception here: it is an outcome (`proctor_supervisor.outcome`).
"""

from __future__ import annotations


class SupervisorError(Exception):
    """Base of all errors raised by this package; its text says what happened and what to do."""


class UnsupportedPlatform(SupervisorError):
    """The operating system lacks what a proven stop needs (pidfd, parent-death signal, subreaper, /proc)."""


class StartRefused(SupervisorError):
    """The supervisor process did not start.

    `module` names the preloaded module at fault (``site`` stands for what the interpreter imports at its start), or is
    None when the process itself failed. `unsafe` says that the module can be imported but makes forking unsafe: then
    children can still be exec'd. `temporary` says that the system had no room for a process, and may have later.
    """

    def __init__(
        self, message: str, *, module: str | None = None, unsafe: bool = False, temporary: bool = False
    ) -> None:
        super().__init__(message)
        self.module = module
        self.unsafe = unsafe
        self.temporary = temporary


class TaskRefused(SupervisorError):
    """The task was refused before any byte of it was sent to a child."""


class SupervisorClosed(SupervisorError):
    """The supervisor is closed, or closing: no new attempt can start."""


class StopUnconfirmed(SupervisorError):
    """A child was killed but could not be proven gone in time.

    Its slot stays taken. `pid` is the process to look at; a process in uninterruptible sleep (state D) is the
    usual cause.
    """

    def __init__(self, message: str, *, pid: int) -> None:
        super().__init__(message)
        self.pid = pid
