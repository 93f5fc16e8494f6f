"""What bounds recovery: snapshots and checkpoints, and the roles that only one process at a time has."""
