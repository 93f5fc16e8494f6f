"""Recorded ledgers, and what they must fold to for ever."""
