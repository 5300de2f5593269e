"""The suite ``proctor bench server``: a worker's pace on the embedded server, and what many runs and polls cost it.

`plan` says what is measured against what; `activities`, `filled` and `parked` are probes and run in interpreters of
their own. `service` gives each a server of its own, `traffic` talks to it, `workload` is what the workers run, and
`official_worker` is the peer's worker.
"""
