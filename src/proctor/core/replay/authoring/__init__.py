"""What workflow code is written with: the `ctx`, the commands it authors, and their form on the wire."""
