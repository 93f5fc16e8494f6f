"""Chance, for the template filter `random`."""

from __future__ import annotations

import secrets


def pick_below(number: int) -> int:
    """An index below a number, each as likely as the others."""
    return secrets.randbelow(number)
