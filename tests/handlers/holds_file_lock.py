"""Importing this locks a file."""

import fcntl
import tempfile

FILE = tempfile.TemporaryFile()  # noqa: SIM115
fcntl.flock(FILE, fcntl.LOCK_EX)
