"""The ``proctor`` command: one module per subject. It parses, calls and prints; rules live elsewhere."""
