"""The doctor: looks at everything, and fixes what it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from noetl.core.errors import NoetlError
from noetl.engine.doctor.finding import CHECK_FAILED, Check, Finding

log = logging.getLogger("noetl.doctor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What was found, and what is left of it."""

    found: Sequence[Finding]
    left: Sequence[Finding]

    @property
    def fixed(self) -> list[Finding]:
        left = {(one.code, one.where) for one in self.left}
        return [one for one in self.found if (one.code, one.where) not in left]


class Doctor:
    """One check after the other, for one asker after the other: whoever is ill needs its database for other things."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = checks
        self._turn = asyncio.Lock()

    async def examine(self) -> list[Finding]:
        async with self._turn:
            return await self._examine()

    async def treat(self) -> Treatment:
        """Fix what can be fixed, and look again."""
        async with self._turn:
            found = await self._fix()
            return Treatment(found=found, left=await self._examine())

    async def _examine(self) -> list[Finding]:
        return [finding for check in self._checks for finding in await self._look(check)]

    async def _fix(self) -> list[Finding]:
        """Returns all that was found."""
        found = []
        for check in self._checks:
            seen = await self._look(check)
            found += seen
            own = [finding for finding in seen if finding.can_fix]
            if not own:
                continue
            for finding in own:
                log.info("fixing", extra={"event": "doctor.fixes", "reason": f"{finding.code} {finding.where}"})
            try:
                await check.fix(own)
            except NoetlError as error:  # the second look tells what is left, and the other checks have their turn
                log.warning("not fixed", extra={"event": "doctor.failed", "reason": str(error)})
        return found

    async def _look(self, check: Check) -> list[Finding]:
        try:
            return await check.look()
        except NoetlError as error:
            name = type(check).__name__
            return [
                Finding(
                    code=CHECK_FAILED,
                    what=f"this could not be looked at: {error}",
                    where=name,
                    do="look at the database and the log of this process, then run `noetl doctor` again",
                )
            ]
