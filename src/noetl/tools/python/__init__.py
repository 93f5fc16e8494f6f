"""User Python in warm child processes: `pool.ChildPool` is the face of this package."""
