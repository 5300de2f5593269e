"""What differs between operating systems, behind plain functions; `current` picks the module at import."""

from __future__ import annotations

import sys

from proctor_supervisor.errors import UnsupportedPlatform


def require_supported() -> None:
    """Raise UnsupportedPlatform unless this system can prove a stop."""
    if sys.platform != "linux":
        raise UnsupportedPlatform(
            f"Proctor's supervisor needs Linux 5.4 or newer (pidfd, parent-death signal, subreaper, /proc); "
            f"this is {sys.platform}. Run the worker in a Linux container or machine."
        )
    from proctor_supervisor.platform import linux

    linux.require_facilities()
