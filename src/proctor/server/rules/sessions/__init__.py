"""Worker sessions: leases on a name that route queued activities to one worker (sessions.md)."""
