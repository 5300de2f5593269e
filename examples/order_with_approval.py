"""An order that is reserved and priced side by side, waits for an approval, and is paid or given up.

    python examples/order_with_approval.py

Queued and local activities, a group, a signal, a wait with a timeout. Two orders: one is approved, for the other nobody
comes.
"""

from __future__ import annotations

from typing import Any

import trio

from one_machine import QUEUE, one_machine
from proctor import activity, workflow


@activity.defn(name="reserve")
def reserve(item: str) -> str:
    """Take the item from the shelf."""
    return f"{item} reserved"


@activity.defn(name="price")
def price(item: str) -> int:
    """Look the price up."""
    return 10 * len(item)


@activity.defn(name="charge")
def charge(who: str, amount: int) -> str:
    """Take the money."""
    return f"{who} paid {amount}"


@workflow.defn(name="order")
class Order:
    """Reserve, ask, charge."""

    def __init__(self) -> None:
        self.approved_by: str | None = None

    @workflow.signal("approve")
    def approve(self, who: str) -> None:
        """Somebody takes the responsibility."""
        self.approved_by = who

    async def run(self, ctx: workflow.WorkflowContext, item: str, patience: float) -> list[Any]:
        """Give what came of the order."""
        reserved, amount = await ctx.gather(
            [ctx.schedule_activity("reserve", [item]), ctx.schedule_activity("price", [item])]
        )
        if not await ctx.wait_condition(lambda: self.approved_by is not None, key="approval", timeout=patience):
            return [reserved, "nobody approved"]
        return [reserved, await ctx.local_activity("charge", [self.approved_by, amount], start_to_close_timeout=10)]


async def main() -> None:
    """Run two orders."""
    async with one_machine([Order], [reserve, price, charge], queued=2) as client:
        book = await client.start_workflow("order", ["book", 60], task_queue=QUEUE)
        lamp = await client.start_workflow("order", ["lamp", 1], task_queue=QUEUE)
        await book.signal("approve", "Ada")
        print("book:", await book.result())
        print("lamp:", await lamp.result())


if __name__ == "__main__":
    trio.run(main)
