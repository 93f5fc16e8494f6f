"""Processes that share one ledger: who is there, who owns what."""
