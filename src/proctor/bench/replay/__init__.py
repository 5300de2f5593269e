"""The suite ``proctor bench replay``: what replaying a long history costs, how it grows, and what a peer needs.

`plan` says what is measured against what, `histories` builds the inputs; `own` and `official` are probes and run in
interpreters of their own.
"""
