"""The suite ``proctor bench supervisor``: what the supervisor costs, what a stop takes, and what its peers need.

`plan` says what is measured against what; the other modules are probes and run in interpreters of their own.
"""
