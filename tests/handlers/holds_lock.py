"""Importing this leaves a lock held, as an attribute of an object."""

import threading


class Guard:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


GUARD = Guard()
FREE = threading.Lock()
