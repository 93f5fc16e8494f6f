"""Processes: what runs.  They wire the engine to sockets, signals and locks."""
