"""Snapshots, checkpoints, roles and partitions in memory."""
