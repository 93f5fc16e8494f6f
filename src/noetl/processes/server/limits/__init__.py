"""Shared limits: what workers say about them, and how they stand."""
