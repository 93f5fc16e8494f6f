"""Payloads: `keeping` addresses new ones, `reading` opens old ones, `patience` waits for a store that is away."""

from noetl.engine.payloads.keeping import STORE_LARGE, STORE_SMALL, Payloads

__all__ = ["STORE_LARGE", "STORE_SMALL", "Payloads"]
