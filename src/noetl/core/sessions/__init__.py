"""Rules about worker sessions that need no clock and no network."""
