"""Verbs about Spark on this machine."""
