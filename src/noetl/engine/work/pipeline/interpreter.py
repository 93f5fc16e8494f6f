"""The interpreter of a step's task pipeline: fields rendered just before each task, policy after it.

It reports facts and never chooses the next step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl.core.errors import Failure, NoetlError, TemplateFailed, ToolFailed
from noetl.core.execution.writes import nested
from noetl.core.expression import (
    CompiledValue,
    Scope,
    is_true,
    plain,
    view_of,
)
from noetl.core.limits import (
    PIPELINE_TASKS_MAX,
    RETRY_WAIT_IN_WORKER_SECONDS_MAX,
    RETRY_WAIT_SECONDS_MAX,
    TASK_TIMEOUT_SECONDS_BY_KIND,
    TASK_TIMEOUT_SECONDS_DEFAULT,
    WARNINGS_MAX,
)
from noetl.core.playbook.compiled import Assignment, CompiledPlaybook, CompiledRule, CompiledStep, CompiledTask
from noetl.core.playbook.model import Action
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.children import PLAYBOOK, ChildOutcome, ChildRequest, child_request
from noetl.engine.work.names import plain_context
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.outcome import TaskOutcome
from noetl.engine.work.pipeline.rendering import Rendering
from noetl.engine.work.pipeline.retry import attempts_of, retry_delay, wait_of
from noetl.engine.work.pipeline.run import Ended, RowScope, Run, Wait
from noetl.ports.session import CommandMessage
from noetl.ports.tool import ToolCall

# For these tools the keys of `input` are arguments, not names of the templates around them.
_INPUT_IS_PRIVATE = frozenset(("python", "playbook", "workbook"))
_LOG_TASKS_MAX = 20


class _Stop(Exception):
    """The pipeline is over."""

    def __init__(
        self, failure: Failure | None = None, wait: Wait | None = None, child: ChildRequest | None = None
    ) -> None:
        super().__init__()
        self.failure = failure
        self.wait = wait
        self.child = child


class Pipeline:
    """One run of one step's tasks."""

    def __init__(
        self,
        parts: WorkerParts,
        *,
        message: CommandMessage,
        playbook: CompiledPlaybook,
        step: CompiledStep,
        names: dict[str, object],
        run: Run,
        row: RowScope | None = None,
    ) -> None:
        self._session = parts.session
        self._caller = row.caller if row is not None else Caller(parts, message)
        self._clock = parts.clock
        self._message = message
        self._playbook = playbook
        self._step = step
        self._names = names
        self._row = row
        # The claim of a frame is confirmed before its first row.
        self._is_confirmed = row is not None
        self._ended = Ended(run)
        self._rendering = Rendering(
            parts, message, strict=playbook.playbook.strict_templates, warnings=self._ended.warnings
        )
        self._run = run
        self._variables = _mapping(plain(names["ctx"])) if row is None else row.variables

    async def perform(self) -> Ended:
        self._restore_names()
        try:
            while self._run.index < len(self._step.tasks):
                await self._one(self._step.tasks[self._run.index])
        except _Stop as stop:
            self._ended.failure, self._ended.wait, self._ended.child = stop.failure, stop.wait, stop.child
        self._ended.variables = self._variables
        return self._ended

    def _restore_names(self) -> None:
        run = self._run
        self._names["iter"] = {**_mapping(self._names.get("iter")), **run.scopes["iter"]}
        self._names["step"] = run.scopes["step"]
        self._names["results"] = dict(run.results)
        self._names["_prev"] = run.results[run.order[-1]] if run.order else None
        self._names.update({label: view_of(value) for label, value in run.results.items()})
        self._names.update(run.scopes["local"])

    # --- one task ------------------------------------------------------------------------------------------

    async def _one(self, task: CompiledTask) -> None:
        run = self._run
        outcome = await self._outcome(task)
        attempt = outcome.attempt
        self._ended.last = outcome
        self._remember(task, outcome)
        rule = await self._matching(task, outcome)
        if rule is not None:
            await self._assign(rule.sets, task)
        action = self._action(task, rule, outcome)
        if action is Action.RETRY:
            assert rule is not None
            await self._retry(task, rule, outcome, attempt)
            return
        if action is Action.FAIL:
            raise _Stop(outcome.failure or Failure(kind="policy", message=f"a rule of task {task.label!r} said fail"))
        if task.sets:
            self._names["output"] = self._names["outcome"] = outcome.view()
            await self._assign(task.sets, task)
            self._names["output"] = self._names["outcome"] = outcome.output()
        if action is Action.BREAK:
            raise _Stop
        if action is Action.JUMP:
            assert rule is not None
            assert rule.to is not None
            run.index = rule.to
        else:
            run.index += 1

    async def _outcome(self, task: CompiledTask) -> TaskOutcome:
        """Run a task, or take up what became of the execution that it started."""
        run = self._run
        child, run.child = run.child, None
        if child is not None:
            return await self._resumed(task, child)
        run.executed += 1
        if run.executed > PIPELINE_TASKS_MAX:
            raise _Stop(
                Failure(
                    kind="policy",
                    code="pipeline_runaway",
                    message=f"more than {PIPELINE_TASKS_MAX:,} task runs",
                )
            )
        attempt = run.attempts.get(task.label, 0) + 1
        run.attempts[task.label] = attempt
        return await self._call(task, attempt)

    async def _resumed(self, task: CompiledTask, child: ChildOutcome) -> TaskOutcome:
        names, attempt = self._names, self._run.attempts[task.label]
        names["_task"], names["_attempt"] = task.label, attempt
        with contextlib.suppress(TemplateFailed):
            names["input"] = _mapping(await self._value(task.input, task, "input"))
        outcome = TaskOutcome(
            value=child.value,
            failure=child.failure,
            attempt=attempt,
            duration_ms=0.0,
            started_at=self._clock.now(),
        )
        self._log(task, outcome)
        return outcome

    async def _call(self, task: CompiledTask, attempt: int) -> TaskOutcome:
        names = self._names
        names["_task"], names["_attempt"] = task.label, attempt
        names.pop("error", None)
        started, started_at = self._clock.monotonic(), self._clock.now()
        value: object = None
        failure, facts, traceback = None, None, None
        try:
            call = await self._prepare(task)
            await self._begin()
            if task.kind == PLAYBOOK:
                raise _Stop(child=child_request(call))
            result = await self._caller.run(task.kind, call)
            value, failure, facts, traceback = result.value, result.failure, result.facts, result.traceback
            if result.stdout:
                self._ended.stdout += result.stdout
        except ToolFailed as error:
            value, failure = error.data, error.failure
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=self._place(task, str(error)))
        except NoetlError as error:
            failure = Failure(kind="unknown", code=error.code, message=self._place(task, str(error)))
        outcome = TaskOutcome(
            value=value,
            failure=failure,
            attempt=attempt,
            duration_ms=round((self._clock.monotonic() - started) * 1000, 3),
            started_at=started_at,
            traceback=traceback,
            facts=facts,
        )
        self._log(task, outcome)
        return outcome

    async def _begin(self) -> None:
        """Nothing has an effect before the claim is in the ledger; everything before was preparation."""
        if not self._is_confirmed:
            await self._session.confirmed(self._message)
            self._is_confirmed = True

    def _place(self, task: CompiledTask, message: str) -> str:
        return f"step {self._step.name!r}, task {task.label!r}: {message}"

    async def _prepare(self, task: CompiledTask) -> ToolCall:
        """Render the task's input and fields against the running context."""
        names = self._names
        task_input = _mapping(await self._value(task.input, task, "input"))
        names["input"] = task_input
        scope: Mapping[str, object] = names
        if task.kind not in _INPUT_IS_PRIVATE and task_input:
            scope = {**task_input, **names}
        fields: dict[str, object] = {}
        for name, compiled in task.fields.items():
            if name in task.lenient and not self._is_renderable(compiled, scope):
                fields[name] = compiled.source
            else:
                fields[name] = await self._value(compiled, task, name, scope)
        timeout = await self._timeout(task)
        wants_context = task.kind == "python" and "context" in str(fields.get("code", ""))
        return ToolCall(
            fields=fields,
            input=task_input,
            names=self._row.names if self._row is not None else {},
            context=plain_context(self._names) if wants_context else None,
            timeout_seconds=timeout,
            tenant_id=self._message.tenant_id,
            organization_id=self._message.organization_id,
            execution_id=self._message.execution_id,
            step=self._step.name,
            label=task.label,
            sink=self._caller.sink,
            is_row=self._row is not None,
        )

    def _is_renderable(self, compiled: CompiledValue, names: Mapping[str, object]) -> bool:
        """Program text is a template only when every name it reads exists."""
        missing = [root for root in compiled.roots if root not in names and root not in ("now", "range")]
        if missing:
            self._warn(f"code is run as it is: {', '.join(sorted(missing))} not defined")
        return bool(compiled.roots) and not missing

    async def _timeout(self, task: CompiledTask) -> float:
        usual = TASK_TIMEOUT_SECONDS_BY_KIND.get(task.kind, TASK_TIMEOUT_SECONDS_DEFAULT)
        default = self._playbook.playbook.task_timeout_seconds or usual
        if task.timeout is None:
            return default
        return wait_of("timeout", await self._value(task.timeout, task, "timeout"), default)

    # --- policy --------------------------------------------------------------------------------------------

    def _remember(self, task: CompiledTask, outcome: TaskOutcome) -> None:
        run, names = self._run, self._names
        is_last = run.index + 1 == len(self._step.tasks)
        if task.label not in run.order or run.order[-1] != task.label:
            if task.label in run.order:
                run.order.remove(task.label)
            run.order.append(task.label)
        run.results[task.label] = outcome.value if outcome.failure is None else plain(outcome.view())
        if is_last and not task.rules and not task.sets:
            return
        view = names[task.label] = outcome.view()
        names["results"] = {**_mapping(names.get("results")), task.label: view}
        names["_prev"] = outcome.value
        names["output"] = names["outcome"] = outcome.output()
        if outcome.failure is not None:
            names["error"] = plain(outcome.output()["error"])

    async def _matching(self, task: CompiledTask, outcome: TaskOutcome) -> CompiledRule | None:
        del outcome
        for rule in task.rules:
            if rule.when is None:
                return rule
            try:
                if is_true(await self._rendering.render(rule.when, self._names)):
                    return rule
            except TemplateFailed as error:
                self._warn(self._place(task, f"a rule's condition failed: {error}"))
        return None

    @staticmethod
    def _action(task: CompiledTask, rule: CompiledRule | None, outcome: TaskOutcome) -> Action:
        if rule is not None:
            return rule.do
        if task.fails_unmatched is not None and task.rules:
            return Action.FAIL if task.fails_unmatched else Action.CONTINUE
        return Action.FAIL if outcome.failure is not None else Action.CONTINUE

    async def _retry(self, task: CompiledTask, rule: CompiledRule, outcome: TaskOutcome, attempt: int) -> None:
        """Wait and run the task again, or fail when the attempts are used up."""
        try:
            limit = attempts_of(await self._value(rule.attempts, task, "attempts"))
            explicit = (
                None if rule.delay is None else wait_of("delay", await self._value(rule.delay, task, "delay"), 1.0)
            )
        except ToolFailed as error:
            raise _Stop(replace(error.failure, message=self._place(task, error.failure.message))) from error
        except TemplateFailed as error:
            raise _Stop(Failure(kind="template", code=error.code, message=self._place(task, str(error)))) from error
        if attempt >= limit:
            raise _Stop(
                outcome.failure or Failure(kind="policy", message=f"task {task.label!r} was tried {attempt} times")
            )
        delay = retry_delay(rule.backoff, explicit, attempt)
        if outcome.failure is not None and outcome.failure.retry_after is not None:
            delay = min(max(delay, outcome.failure.retry_after), RETRY_WAIT_SECONDS_MAX)
        if delay > RETRY_WAIT_IN_WORKER_SECONDS_MAX and self._row is None:
            raise _Stop(wait=Wait(delay, task.label))
        if delay > 0:
            await asyncio.sleep(delay)

    # --- values --------------------------------------------------------------------------------------------

    async def _assign(self, sets: tuple[Assignment, ...], task: CompiledTask) -> None:
        """All values of one block are rendered before any is written."""
        block = []
        for assignment in sets:
            try:
                value = plain(await self._value(assignment.value, task, "set"))
                block.append((assignment, value))
            except TemplateFailed as error:
                self._warn(self._place(task, f"set {'.'.join(assignment.path)}: {error}"))
        for assignment, value in block:
            self._write(assignment, value)

    def _write(self, assignment: Assignment, value: object) -> None:
        names, path = self._names, assignment.path
        if assignment.scope == "ctx":
            self._variables = nested(self._variables, path, value)
            names["ctx"] = Scope(self._variables, _mapping(names["workload"]), _mapping(names["steps"]))
            names[path[0]] = self._variables[path[0]]
            self._run.writes.append({"path": list(path), "v": value})
            return
        scope = nested(self._run.scopes[assignment.scope], path, value)
        self._run.scopes[assignment.scope] = scope
        if assignment.scope == "local":
            names[path[0]] = scope[path[0]]
        else:
            names[assignment.scope] = {**_mapping(names.get(assignment.scope)), **scope}

    async def _value(
        self,
        value: CompiledValue,
        task: CompiledTask,
        name: str,
        names: Mapping[str, object] | None = None,
    ) -> Any:
        try:
            return await self._rendering.render(value, self._names if names is None else names)
        except TemplateFailed as error:
            raise type(error)(f"field {name!r} of task {task.label!r}: {error}") from error

    def _warn(self, message: str) -> None:
        if len(self._ended.warnings) < WARNINGS_MAX:
            self._ended.warnings.append(message)

    def _log(self, task: CompiledTask, outcome: TaskOutcome) -> None:
        if len(self._ended.tasks) < _LOG_TASKS_MAX:
            entry: dict[str, object] = {"task": task.label, "ms": outcome.duration_ms}
            if outcome.attempt > 1:
                entry["attempt"] = outcome.attempt
            if outcome.failure is not None:
                entry["error"] = outcome.failure.kind
            self._ended.tasks.append(entry)


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
