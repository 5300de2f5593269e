"""Importing this starts a process, and ends the importing one without a word."""

import os
import subprocess

PROCESS = subprocess.Popen(["sleep", "600"])
os._exit(3)
