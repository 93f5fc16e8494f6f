"""Permits of shared limits: the desk of a server, where its workers ask for them, and the worker's end."""
