"""Importing this starts a thread."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()


def handler(path: str) -> str:
    return path
