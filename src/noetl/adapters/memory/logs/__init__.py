"""Logs of tools and user code in memory."""
