"""Metrics of a process in the text format of Prometheus, read from what its parts count about themselves."""
