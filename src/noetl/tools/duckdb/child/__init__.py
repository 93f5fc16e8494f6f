"""What runs in the child process of a task.  Only these modules import DuckDB."""
