"""``python -m proctor.bench.probe MODULE:FUNCTION PARAMETERS FILE``: measure one thing in a fresh interpreter.

Calls the function with the JSON object PARAMETERS as keywords and writes the series it returns to FILE. Imports
nothing that a peer's own worker processes would then have to import as their main module.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Measure, and write down what was measured."""
    target, parameters, file = sys.argv[1:]
    module, _, name = target.partition(":")
    series = getattr(importlib.import_module(module), name)(**json.loads(parameters))
    with open(file, "w") as out:
        json.dump(series, out)


if __name__ == "__main__":
    main()
