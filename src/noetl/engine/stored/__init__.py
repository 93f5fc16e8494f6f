"""Stored results as names of templates: opened when they are looked at, and no further than that."""
