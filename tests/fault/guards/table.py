"""All guards."""

from __future__ import annotations

from tests.fault.guards import control, ledger, storing
from tests.fault.guards.guard import Guard

GUARDS: tuple[Guard, ...] = (*ledger.GUARDS, *control.GUARDS, *storing.GUARDS)
