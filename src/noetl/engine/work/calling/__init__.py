"""Calling tools: credentials resolved just before, secrets scrubbed just after, large bodies stored on the way."""
