"""Takes long to import, sets signal handlers, and remembers how often it was imported in this process's line."""

import os
import signal
import time

time.sleep(3)
IMPORTED_BY = os.getpid()
for _number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 3):
    signal.signal(_number, lambda *_: None)


def imported_by() -> int:
    return IMPORTED_BY


def dispositions() -> list[bool]:
    numbers = (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 3)
    return [signal.getsignal(number) is signal.SIG_DFL for number in numbers]
