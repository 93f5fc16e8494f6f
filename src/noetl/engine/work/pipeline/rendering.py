"""Rendering what a worker renders: here, or in a child process when a template may take long."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.expression import CompiledValue, Template, render, render_value
from noetl.core.limits import TEMPLATE_SECONDS_MAX, WARNINGS_MAX
from noetl.engine.work.parts import WorkerParts
from noetl.ports.session import CommandMessage


class Rendering:
    """For one command; what is undefined on the way is noted in `warnings`."""

    def __init__(self, parts: WorkerParts, message: CommandMessage, *, strict: bool, warnings: list[str]) -> None:
        self._renderer = parts.renderer
        self._clock = parts.clock
        self._message = message
        self._strict = strict
        self._warnings = warnings

    async def render(self, value: CompiledValue | Template, names: Mapping[str, object]) -> object:
        if value.needs_child:
            chosen = {root: names[root] for root in value.roots if root in names}
            return await self._renderer.render(
                value.source,
                chosen,
                now=self._clock.now(),
                timeout_seconds=TEMPLATE_SECONDS_MAX,
                tenant=self._message.tenant_id,
                organization=self._message.organization_id,
                strict=self._strict,
            )
        warnings = self._warnings if len(self._warnings) < WARNINGS_MAX else None
        now = self._clock.now() if value.uses_now else None
        if isinstance(value, Template):
            return render(value, names, now=now, strict=self._strict, warnings=warnings)
        return render_value(value, names, now=now, strict=self._strict, warnings=warnings)
