"""Which fold a snapshot was made by."""

from __future__ import annotations

CODE_VERSION = "2"
"""Rises with every change of the fold or of the state: a snapshot of another fold is ignored, and made again.  A test
compares the code of the fold with what was recorded for this version (`tests/golden/`)."""
