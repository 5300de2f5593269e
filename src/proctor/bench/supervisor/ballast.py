"""A module that is heavy to import, as a stand-in for a machine learning library: 100 MB of small Python objects.

Small objects are the hard case: each carries a reference count, and the collector visits it.
"""

from __future__ import annotations

BALLAST = [(number, f"an entry of the ballast, number {number}") for number in range(500_000)]
