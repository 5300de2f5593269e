"""Kill-test your own handler: its child, its supervisor and its worker die at random instants; nothing may be left.

Run: python examples/kill_test_your_handler.py [SEED]
From a shell: proctor kill-test --module kill_test_your_handler --handler convert --args '["report"]'
"""

from __future__ import annotations

import subprocess
import sys

import trio

from proctor import activity
from proctor.harness import Subject, kill_test


@activity.defn(name="convert")
def convert(name: str) -> str:
    """Stand for a converter that is a program of its own: it is asked, it takes its time, it answers."""
    done = subprocess.run(["/bin/sh", "-c", f"sleep 0.2; echo {name}.pdf"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def main() -> int:
    """Kill, and tell."""
    subject = Subject("kill_test_your_handler:convert", ("report",), timeout=10)
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else None
    report = await kill_test(
        subject,
        ["child", "supervisor", "owner"],
        rounds=1,
        seed=seed,
        on_round=lambda one: print(f"{one.scenario} killed after {one.delay * 1000:.0f} ms: {one.happened}"),
    )
    print(f"seed {report.seed}: {len(report.rounds)} kills, broken promises: {report.broken}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(trio.run(main))
