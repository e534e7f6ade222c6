"""One thin handler a command."""
