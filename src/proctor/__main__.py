"""``python -m proctor`` is the ``proctor`` command."""

from __future__ import annotations

from proctor.cli.main import main

if __name__ == "__main__":
    main()
