"""The HTTP stand-in as a real process on a port of its own."""

from __future__ import annotations

from noetl.standin.process import standin_process

__all__ = ["standin_process"]
