"""Loops: what the router decides about them, and the fold of their stages and frames."""
