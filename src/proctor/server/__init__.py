"""The embedded development server: the real worker and control planes over one SQLite file, on Trio.

`ServerOptions` and `serve` are the way in. The package shares the codec, the timestamps and the errors with the
worker and nothing else, so that one side's mistake is not hidden by the other's.
"""

from __future__ import annotations

from proctor.server.serve import ServerOptions, serve

__all__ = ["ServerOptions", "serve"]
