"""The clock of this process as moments."""

from __future__ import annotations

import datetime

from noetl.ports.clock import Clock


def moment_of(clock: Clock) -> datetime.datetime:
    return datetime.datetime.fromisoformat(clock.now())
