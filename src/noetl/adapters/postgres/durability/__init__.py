"""Snapshots, checkpoints, roles and partitions on Postgres."""
