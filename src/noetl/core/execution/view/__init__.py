"""What people are shown of an execution."""
