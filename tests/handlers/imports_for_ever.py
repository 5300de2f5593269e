"""A module that says by the pipe named in the environment that it is being imported, and never comes to an end."""

import os
import time
from pathlib import Path

Path(os.environ["IMPORTING"]).write_text("importing")
while True:
    time.sleep(600)
