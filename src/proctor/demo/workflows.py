"""The demo's workflow, and its handlers beside it: ``proctor worker proctor.demo.workflows`` runs both."""

from __future__ import annotations

from typing import Any

from proctor import workflow
from proctor.demo.handlers import digest, flaky, match, stubborn

__all__ = ["Demo", "digest", "flaky", "match", "stubborn"]


@workflow.defn(name="proctor.demo")
class Demo:
    """Digest all files in batches, match a line, outlive a handler that resists, and retry one that fails."""

    async def run(self, ctx: workflow.WorkflowContext, plan: dict[str, Any]) -> dict[str, Any]:
        """Run the plan made by `proctor.demo.subject`."""
        batches = [
            await ctx.local_activity(
                "demo.digest",
                [batch],
                start_to_close_timeout=30,
                heartbeat_timeout=10,
                retry_policy=workflow.RetryPolicy(max_attempts=3),
            )
            for batch in plan["batches"]
        ]
        matched = await ctx.local_activity(
            "demo.match",
            [plan["path"], plan["line_number"], plan["line"]],
            start_to_close_timeout=1,
            schedule_to_close_timeout=30,
            retry_policy=workflow.RetryPolicy(max_attempts=3),
        )
        try:
            await ctx.local_activity("demo.stubborn", [], start_to_close_timeout=20, heartbeat_timeout=1)
            resisted = "it returned"
        except workflow.ActivityFailed as failure:
            resisted = f"stopped: {failure.failure_category}"
        recovered = await ctx.local_activity(
            "demo.flaky", [], retry_policy=workflow.RetryPolicy(max_attempts=2), start_to_close_timeout=10
        )
        return {
            "files": sum(batch["files"] for batch in batches),
            "bytes": sum(batch["bytes"] for batch in batches),
            "compressed": sum(batch["compressed"] for batch in batches),
            "sha256": [batch["sha256"] for batch in batches],
            "match": matched,
            "stubborn": resisted,
            "flaky": recovered,
        }
