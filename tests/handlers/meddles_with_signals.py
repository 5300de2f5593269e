"""A module that, when imported, blocks every signal and sets a timer whose handler raises, as a watchdog may."""

import signal


def _on_alarm(*_: object) -> None:
    raise TimeoutError("the module's own")


signal.signal(signal.SIGALRM, _on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGALRM})
