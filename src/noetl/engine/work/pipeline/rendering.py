"""Rendering what a worker renders: here, or in a child process when a template may take long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.expression import (
    Absent,
    CompiledValue,
    Template,
    loaded,
    render,
    render_value,
    render_with_parts,
    sole_template,
)
from noetl.core.limits import TEMPLATE_SECONDS_MAX, WARNINGS_MAX
from noetl.core.results.parts import joined
from noetl.engine.stored.sources import settled
from noetl.engine.work.parts import WorkerParts
from noetl.ports.session import CommandMessage


class Rendering:
    """For one command; what is undefined on the way is noted in `warnings`."""

    def __init__(self, parts: WorkerParts, message: CommandMessage, *, strict: bool, warnings: list[str]) -> None:
        self._renderer = parts.renderer
        self._clock = parts.clock
        self._pick_below = parts.pick_below
        self._message = message
        self._strict = strict
        self._warnings = warnings

    async def render(self, value: CompiledValue | Template, names: Mapping[str, object]) -> object:
        if value.needs_child:
            chosen = await settled(lambda: {root: loaded(names[root]) for root in value.roots if root in names})
            return await self._renderer.render(
                value.source,
                chosen,
                now=self._clock.now(),
                timeout_seconds=TEMPLATE_SECONDS_MAX,
                tenant=self._message.tenant_id,
                organization=self._message.organization_id,
                strict=self._strict,
            )
        now = self._clock.now() if value.uses_now else None
        try:
            return self._drawn(value, names, now)
        except Absent:
            return await settled(lambda: self._drawn(value, names, now))

    async def render_with_parts(self, value: CompiledValue, names: Mapping[str, object]) -> object:
        """As `render`; what is stored as a payload of its own stays a view of it."""
        if value.needs_child:
            return await self.render(value, names)
        return await settled(lambda: self._joined(value, names))

    def _joined(self, value: CompiledValue, names: Mapping[str, object]) -> object:
        now, warnings = self._clock.now() if value.uses_now else None, list[str]()
        document, views = render_with_parts(
            value, names, now=now, strict=self._strict, warnings=warnings, random=self._pick_below
        )
        found = joined(document, views)
        self._warnings.extend(warnings[: max(WARNINGS_MAX - len(self._warnings), 0)])
        return found

    def _drawn(self, value: CompiledValue | Template, names: Mapping[str, object], now: str | None) -> object:
        warnings: list[str] = []
        options: dict[str, Any] = {"now": now, "strict": self._strict, "warnings": warnings, "random": self._pick_below}
        template = sole_template(value)
        if template is not None:
            found = render(template, names, **options)
        else:
            assert isinstance(value, CompiledValue)
            found = render_value(value, names, **options)
        if warnings:
            # Not before: what is noted while something is missing is noted again when it is there.
            self._warnings.extend(warnings[: max(WARNINGS_MAX - len(self._warnings), 0)])
        return found
