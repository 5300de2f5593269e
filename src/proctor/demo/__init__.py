"""The demo: a real workflow over real files, with handlers that only a physical stop can end.

`handlers` and `workflows` are what the worker runs; `subject` picks the files and the line; `household` runs the
server and the worker as processes of their own; `story` collects what happens; `report` tells it.
"""
