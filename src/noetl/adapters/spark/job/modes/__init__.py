"""The ways a job's program may be written."""
