"""What can be said about a compiled playbook without running it."""
