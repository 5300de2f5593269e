"""Importing this starts a process."""

import subprocess

PROCESS = subprocess.Popen(["sleep", "600"])
