"""Requests to the outer world, and only to addresses that the policy admits."""
