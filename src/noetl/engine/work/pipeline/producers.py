"""References that a task needs and that are gone or damaged, and results that cannot be stored.

What a task of the same pipeline stored can be made again: the pipeline goes back to that task and runs on from there, a
few times.  What another step gave cannot; the task fails, and its failure says whose result it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl.core.errors import Failure
from noetl.core.limits import REFERENCE_RETURNS_MAX
from noetl.core.playbook.compiled import CompiledStep
from noetl.engine.stored.unavailable import is_unavailable
from noetl.engine.work.pipeline.pointers import digests_of
from noetl.engine.work.pipeline.run import Run
from noetl.engine.work.pipeline.scope import PipelineScope


class Producers:
    """Who made what the tasks of one pipeline run need."""

    def __init__(self, step: CompiledStep, run: Run, scope: PipelineScope, body: Mapping[str, Any]) -> None:
        self._step = step
        self._run = run
        self._scope = scope
        self._body = body

    def goes_back(self, failure: Failure | None) -> bool:
        """Whether the run goes on at an earlier task, which makes again what is missing.  A task whose own result could
        not be stored is that task itself.  Without one, or too often, the failure stands."""
        if failure is None or not is_unavailable(failure) or self._run.returns >= REFERENCE_RETURNS_MAX:
            return False
        label = self._label(failure)
        if label is None:
            return False
        self._run.returns += 1
        self._run.index = next(place for place, task in enumerate(self._step.tasks) if task.label == label)
        return True

    def named(self, failure: Failure | None) -> Failure | None:
        """The failure that stands, with the step and the task whose result it is about."""
        if failure is None or not is_unavailable(failure) or "step" in failure.details:
            return failure
        label = self._label(failure)
        step = self._step.name if label is not None else self._origin(failure.details.get("sha256"))
        if step is None:
            return failure
        whose = f"step {step!r}" if label is None else f"task {label!r} of this step"
        message = f"{failure.message} (it is a result of {whose})"
        return replace(failure, message=message, details={**failure.details, "step": step, "task": label})

    def _label(self, failure: Failure) -> str | None:
        own = failure.details.get("task") if failure.details.get("step") == self._step.name else None
        found = self._scope.producer_of(failure.details.get("sha256")) if own is None else own
        return found if isinstance(found, str) and any(found == task.label for task in self._step.tasks) else None

    def _origin(self, digest: object) -> str | None:
        """The step whose result has a digest, as far as the command knows."""
        for name, envelope in self._body.get("steps", {}).items():
            if digest is not None and digest in digests_of(envelope.get("ref")):
                return str(name)
        return None
