"""`noetl bench`."""

from __future__ import annotations

import argparse

from noetl.settings import Settings


def bench(arguments: argparse.Namespace, settings: Settings) -> int:
    raise NotImplementedError
