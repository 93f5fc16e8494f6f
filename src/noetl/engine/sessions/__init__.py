"""Sessions with workers of other processes: what they hold, what they hear, and when they are dead."""
