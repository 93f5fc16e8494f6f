"""`set` in a pipeline: values rendered against the running context, and written where they belong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.core.credential_keys import credential_at
from noetl.core.errors import TemplateFailed
from noetl.core.expression import View
from noetl.core.playbook.compiled import Assignment
from noetl.core.results.parts import written
from noetl.engine.stored.sources import settled
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.names import with_open
from noetl.engine.work.pipeline.rendering import Rendering
from noetl.engine.work.pipeline.run import Run
from noetl.engine.work.pipeline.scope import PipelineScope


class Assigning:
    """Belongs to one run of a pipeline; `variables` is the context as that run sees it."""

    def __init__(
        self,
        names: dict[str, object],
        variables: dict[str, object],
        *,
        scope: PipelineScope,
        run: Run,
        rendering: Rendering,
        caller: Caller,
        warn: Callable[[str], None],
    ) -> None:
        self.variables = variables
        self._names = names
        self._scope = scope
        self._run = run
        self._rendering = rendering
        self._caller = caller
        self._warn = warn

    async def assign(self, sets: tuple[Assignment, ...], place: str) -> None:
        """All values of one block are rendered before any is written.  `place` is where the block stands."""
        block = []
        for assignment in sets:
            try:
                value = await self._rendering.render_with_parts(assignment.value, self._names)
                block.append((assignment, self._caller.scrubbed_value(value)))
            except TemplateFailed as error:
                self._warn(f"{place}: set {'.'.join(assignment.path)}: {error}")
        parts = [one.path[0] for one, _ in block if one.scope == "ctx" and len(one.path) > 1]
        if parts:
            self.variables = await with_open(self.variables, parts)
        for assignment, value in block:
            await self._write(assignment, value)

    async def _write(self, assignment: Assignment, value: object) -> None:
        names, path = self._names, assignment.path
        if assignment.scope == "ctx":
            self.variables = await settled(lambda: written(self.variables, path, value))
            self._scope.context(path[0], self.variables)
            self._run.writes.append({"path": list(path), "v": value})
            shaped = None if isinstance(value, View) else credential_at(value, path)
            if shaped is not None:
                name = ".".join(map(str, shaped))
                self._warn(f"credential_in_context: ctx.{name} looks like a credential and is kept out of events")
            return
        scope: Any = await settled(lambda: written(self._run.scopes[assignment.scope], path, value))
        self._run.scopes[assignment.scope] = scope
        if assignment.scope == "local":
            self._scope.own(path[0], scope[path[0]])
        else:
            known = names.get(assignment.scope)
            names[assignment.scope] = {**(known if isinstance(known, Mapping) else {}), **scope}
