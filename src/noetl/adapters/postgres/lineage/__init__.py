"""Reads of results and of what led to them."""
