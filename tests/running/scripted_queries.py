"""The honest answers of the scripted server to query tasks, and what became of each question."""

from __future__ import annotations

from typing import Any

import trio

from proctor.core.codec import envelope
from running.scripted_activities import ScriptedActivities
from running.scripted_run import Body

BUDGET = 30.0


class ScriptedQueries(ScriptedActivities):
    """Questions of the test, handed out one by one in the order they were asked."""

    def __init__(self, *, lease: float, worker_id: str) -> None:
        super().__init__(lease=lease, worker_id=worker_id)
        self.asked: list[Body] = []
        self.queries: dict[str, Body] = {}
        self.replies: dict[str, Body] = {}
        self.question_arrived = trio.Event()
        self.reply_arrived = trio.Event()

    def ask(self, name: str, *arguments: Any, history: list[Body] | None = None) -> str:
        """Put a question into the queue; give its id."""
        identity = f"QT{len(self.queries) + 1}"
        task = {
            "query_task_id": identity,
            "query_task_attempt": 1,
            "workflow_id": "wf-1",
            "run_id": "R",
            "workflow_type": "wf",
            "query_name": name,
            "payload_codec": "avro",
            "workflow_arguments": envelope(self.arguments),
            "query_arguments": envelope(list(arguments)),
            "run_status": "waiting",
            "history_events": list(self.history) if history is None else history,
            "task_queue": "q",
            "lease_owner": self.worker_id,
            "lease_expires_at": self.stamp(BUDGET),
            "query_admitted_at": self.stamp(0),
            "query_deadline_at": self.stamp(BUDGET),
        }
        self.queries[identity] = task
        self.asked.append(task)
        self.question_arrived.set()
        return identity

    async def reply_to(self, identity: str) -> Body:
        """Wait until a question is answered or failed."""
        while identity not in self.replies:
            self.reply_arrived = trio.Event()
            await self.reply_arrived.wait()
        return self.replies[identity]

    async def _do_query_poll(self, body: Body) -> tuple[int, Body]:
        with trio.move_on_after(body["timeout_seconds"]):
            while not self.asked:
                self.question_arrived = trio.Event()
                await self.question_arrived.wait()
        if not self.asked:
            return 200, {"task": None, "poll_status": "timeout"}
        return 200, {"task": {**self.asked.pop(0), "server_time": self.stamp(0)}, "poll_status": "leased"}

    async def _do_query_status(self, body: Body) -> tuple[int, Body]:
        task = next(task for task in self.queries.values() if task["query_task_id"] == body["task_id"])
        claim = ("query_task_id", "query_task_attempt", "lease_owner")
        timing = ("lease_expires_at", "query_admitted_at", "query_deadline_at")
        return 200, {
            **{name: task[name] for name in (*claim, *timing)},
            "can_continue": True,
            "query_task_status": "leased",
            "reason": None,
            "server_time": self.stamp(0),
        }

    async def _do_query_complete(self, body: Body) -> tuple[int, Body]:
        return self._settle(body, "completed")

    async def _do_query_fail(self, body: Body) -> tuple[int, Body]:
        return self._settle(body, "failed")

    async def _do_approve(self, body: Body) -> tuple[int, Body]:
        return 200, {"outcome": "approved", "reason": None}

    async def _do_reject(self, body: Body) -> tuple[int, Body]:
        return 200, {"outcome": "rejected", "reason": body["failure"]["reason"]}

    def _settle(self, body: Body, outcome: str) -> tuple[int, Body]:
        assert body["task_id"] not in self.replies, "a second answer"
        self.replies[body["task_id"]] = {**body, "outcome": outcome}
        self.reply_arrived.set()
        return 200, {"query_task_id": body["task_id"], "query_task_attempt": 1, "outcome": outcome, "reason": None}
