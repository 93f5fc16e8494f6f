"""The end of a driver: nothing that it started outlives it."""

from __future__ import annotations

import os
from typing import NoReturn

from noetl.adapters.spark.driver.sessions import kill_session


def end(status: int) -> NoReturn:
    """At once, from any thread, whatever user code is doing.  The JVM and the Python workers go first."""
    own = os.getpid()
    if os.getsid(0) == own:
        kill_session(own, but=own)
    os._exit(status)
