"""Queued activities: scheduled by a command, leased by a poll, ended once (worker.md §3)."""
