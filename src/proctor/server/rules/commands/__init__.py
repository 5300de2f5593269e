"""The commands of a workflow turn: the grammar of each kind, and what applying one records (commands.md)."""
