"""What recovery needs: snapshots, checkpoints, roles, partitions."""
