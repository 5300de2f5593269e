"""Remembers which process imported it."""

import os

_IMPORTER = os.getpid()


def imported_by() -> int:
    return _IMPORTER
