"""Starting executions from the state of other ones."""
