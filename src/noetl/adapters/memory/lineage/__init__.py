"""Results and what led to them, in memory."""
