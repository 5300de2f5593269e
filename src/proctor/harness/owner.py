"""``python -m proctor.harness.owner SUBJECT [AUTHORITY]``: a program that owns a supervisor, to be killed or frozen.

Says ``{"running": PID}`` when the handler runs, and ``{"ended": …}`` when it is over. With AUTHORITY the right to run
ends after that many seconds.
"""

from __future__ import annotations

import json
import sys

import trio

from proctor.harness.subject import Subject
from proctor_supervisor import Deadlines, SupervisorOptions, open_supervisor


async def main(subject: Subject, authority: float | None) -> None:
    """Run the handler once and tell."""
    options = SupervisorOptions(children=1, preload=["proctor.child", subject.module])
    async with open_supervisor(options) as supervisor, trio.open_nursery() as nursery:
        with supervisor.events() as events:

            async def tell() -> None:
                async for event in events:
                    if event.kind == "started":
                        _say({"running": event.pid})

            nursery.start_soon(tell)
            now = trio.current_time()
            until = None if authority is None else now + authority
            outcome = await supervisor.run(subject.task(Deadlines(attempt=now + subject.timeout, authority=until)))
            _say({"ended": type(outcome).__name__})
            nursery.cancel_scope.cancel()


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    trio.run(main, Subject.from_json(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None)
