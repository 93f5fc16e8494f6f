"""Executions that start each other: preparing a child, and what its story means for its parent."""
