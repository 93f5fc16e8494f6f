"""Collecting payloads that nothing names: mark what is reachable, wait, look again, delete."""
