"""Logs of tools and user code in Postgres."""
