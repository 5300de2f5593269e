"""The official SDK's worker, unmodified, until its stdin ends: official_program.py URL QUEUE [CAPABILITY...]

Exit code 3 when it refuses to work with this server, which is then told on stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from durable_workflow import Client, Worker, activity, workflow


@activity.defn(name="work")
def work(value: str) -> str:
    """Give the value back."""
    return value


@workflow.defn(name="local")
class Local:
    """A value and one local activity."""

    def run(self, ctx, name, arguments):  # type: ignore[no-untyped-def]
        yield ctx.side_effect(lambda: "seed")
        return (yield ctx.local_activity(name, arguments, start_to_close_timeout=30))


async def main(url: str, queue: str, capabilities: list[str]) -> int:
    """Work until told to stop."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def listen() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(told.set)

    threading.Thread(target=listen, daemon=True).start()
    async with Client(url) as client:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=[Local],
            activities=[work],
            capabilities=capabilities,
            worker_id="official",
            poll_timeout=1.0,
        )
        running = asyncio.create_task(worker.run())
        asked = asyncio.create_task(told.wait())
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and isinstance(refusal := running.exception(), RuntimeError):
            print(refusal, file=sys.stderr, flush=True)
            sys.stderr.flush()
            os._exit(3)  # a thread still reads stdin
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:])))
