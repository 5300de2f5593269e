"""What the children of tests run: well-behaved handlers and hostile ones."""
