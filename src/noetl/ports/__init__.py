"""Ports: the small protocols between the engine and the world."""
