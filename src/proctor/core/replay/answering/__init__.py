"""How commands are answered from history: one module per kind, over the shared state of one replay (`run`)."""
