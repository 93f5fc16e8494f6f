"""Shared limits: how fast, and how many at a time, all executions of an owner may call something by its name."""
