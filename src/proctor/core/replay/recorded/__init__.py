"""What history holds: hostile events in, checked steps out (events.md). Nothing here knows the workflow code."""
