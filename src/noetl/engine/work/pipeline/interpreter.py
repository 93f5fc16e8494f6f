"""The interpreter of a step's task pipeline: fields rendered just before each task, policy after it.

It reports facts and never chooses the next step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from noetl.core.errors import Failure, NoetlError, TemplateFailed, ToolFailed
from noetl.core.expression import (
    CompiledValue,
    is_true,
    to_text,
)
from noetl.core.limits import (
    PIPELINE_TASKS_MAX,
    RETRY_WAIT_IN_WORKER_SECONDS_MAX,
    RETRY_WAIT_SECONDS_MAX,
)
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledRule, CompiledStep, CompiledTask
from noetl.core.playbook.keychain.secrecy import reads_secrets
from noetl.core.playbook.model import Action
from noetl.core.playbook.programs import needs_of_program, program_of, script_template
from noetl.core.playbook.scripts import FIELD as SCRIPT
from noetl.core.playbook.scripts import is_program
from noetl.core.results.parts import holds_parts, primed, rooted
from noetl.engine.stored.sources import settled
from noetl.engine.stored.unavailable import LOST, UNSTORED, failed_by, unstored
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.children import PLAYBOOK, ChildOutcome, ChildRequest, caller_of, child_request
from noetl.engine.work.frames.profile import Cost
from noetl.engine.work.logs.task_log import TaskLog
from noetl.engine.work.names import bound_names, plain_context, variables_of
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.assigning import Assigning
from noetl.engine.work.pipeline.given import Given, given_of
from noetl.engine.work.pipeline.limiting import Limiting
from noetl.engine.work.pipeline.outcome import TaskOutcome
from noetl.engine.work.pipeline.producers import Producers
from noetl.engine.work.pipeline.rendering import Rendering
from noetl.engine.work.pipeline.retry import attempts_of, retry_delay, usual_timeout, wait_of
from noetl.engine.work.pipeline.run import Ended, RowScope, Run, Wait, Warn
from noetl.engine.work.pipeline.scope import PipelineScope
from noetl.engine.work.pipeline.storing import stored_outcome
from noetl.ports.session import CommandMessage
from noetl.ports.tool import ToolCall, ToolResult

# For these tools the keys of `input` are arguments, not names of the templates around them.
_INPUT_IS_PRIVATE = frozenset(("python", "playbook", "workbook"))
_LOG_TASKS_MAX = 20


class _Stop(Exception):
    """The pipeline is over."""

    def __init__(
        self, failure: Failure | None = None, wait: Wait | None = None, child: ChildRequest | None = None
    ) -> None:
        super().__init__()
        self.failure, self.wait, self.child = failure, wait, child


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
        self._payloads = parts.payloads
        self._caller = row.caller if row is not None else Caller(parts, message, playbook=playbook, names=names)
        self._clock = parts.clock
        self._message = message
        self._playbook = playbook
        self._step = step
        self._names = names
        self._scope = PipelineScope(names, bound_names(message.body, playbook) if row is None else row.reserved)
        self._row = row
        # The claim of a frame is confirmed before its first row.
        self._is_confirmed = row is not None
        self._ended = Ended(run)
        self._warn = Warn(self._ended.warnings, self._caller)
        self._rendering = Rendering(
            parts, message, strict=playbook.playbook.strict_templates, warnings=self._ended.warnings
        )
        self._run = run
        self._permits = parts.permits
        self._limiting: Limiting | None = None  # most rows need none
        self._producers = Producers(step, run, self._scope, message.body)
        self._assigning = Assigning(
            names,
            variables_of(names) if row is None else row.variables,
            scope=self._scope,
            run=run,
            rendering=self._rendering,
            caller=self._caller,
            warn=self._warn,
        )

    async def perform(self) -> Ended:
        self._scope.restore(self._run)
        try:
            while self._run.index < len(self._step.tasks):
                await self._turn(self._step.tasks[self._run.index])
        except _Stop as stop:
            self._ended.failure, self._ended.wait, self._ended.child = stop.failure, stop.wait, stop.child
        self._ended.variables = self._assigning.variables
        if self._row is None:
            self._ended.payloads = self._caller.tables.take()
        self._run.scripts |= self._caller.fetched_scripts()
        return self._ended

    # --- one task ------------------------------------------------------------------------------------------

    async def _turn(self, task: CompiledTask) -> None:
        try:
            await self._one(task)
        except LOST as error:  # a rule or a `set` looked at what is gone
            failure = failed_by(error, self._step.name, task.label)
            if not self._producers.goes_back(failure):
                raise _Stop(self._producers.named(failure)) from error

    async def _one(self, task: CompiledTask) -> None:
        run = self._run
        outcome = await self._kept(task, await self._outcome(task))
        if outcome.failure is not None:
            if self._producers.goes_back(outcome.failure):
                return
            outcome = replace(outcome, failure=self._producers.named(outcome.failure))
        attempt = outcome.attempt
        self._ended.last = outcome
        self._remember(task, outcome)
        rule = await self._matching(task, outcome)
        if rule is not None:
            await self._assigning.assign(rule.sets, self._where(task))
        action = self._action(task, rule, outcome)
        if action is Action.RETRY:
            assert rule is not None
            await self._retry(task, rule, outcome, attempt)
            return
        if action is Action.FAIL:
            raise _Stop(outcome.failure or Failure(kind="policy", message=f"a rule of task {task.label!r} said fail"))
        if task.sets:
            self._names["output"] = self._names["outcome"] = outcome.view()
            await self._assigning.assign(task.sets, self._where(task))
            self._names["output"] = self._names["outcome"] = outcome.output()
        if action is Action.BREAK:
            self._ended.is_broken = True
            raise _Stop
        if action is Action.JUMP:
            assert rule is not None
            assert rule.to is not None
            run.index = rule.to
        else:
            run.index += 1

    async def _kept(self, task: CompiledTask, outcome: TaskOutcome) -> TaskOutcome:
        """The outcome of a task, stored on its own if somebody may ask where its result is."""
        self._run.stored.pop(task.label, None)
        if task.label not in self._step.kept:
            return outcome
        hints = task.hints if self._step.is_pipeline else self._step.hints
        owner = {"tenant_id": self._message.tenant_id, "organization_id": self._message.organization_id}
        try:
            found = await stored_outcome(self._payloads, outcome, hints, **owner)
        except UNSTORED as error:
            return replace(outcome, failure=unstored(error, self._step.name, task.label))
        if found.extras is not None:
            self._run.stored[task.label] = found.extras
        return found

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
                    message=self._place(task, f"more than {PIPELINE_TASKS_MAX:,} task runs, a jump may never end"),
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
        started = self._clock.monotonic()
        is_looked_at = self._is_looked_at(task)
        started_at = self._clock.now() if is_looked_at else ""
        value: object = None
        failure, facts, traceback = None, None, None
        rendered: float | None = None
        try:
            call = await self._prepare(task)
            rendered = self._clock.monotonic()
            await self._begin()
            if task.limit is None:
                result = await self._tool(task, call)
            else:
                if self._limiting is None:
                    self._limiting = Limiting(self._permits, self._message, self._playbook, self._warn)
                async with self._limiting.permit(task.limit):
                    result = await self._tool(task, call)
            value = result.value
            if result.parts:
                value = self._caller.value_of(result)
                await settled(lambda: primed(value))
            failure, facts, traceback = result.failure, result.facts, result.traceback
            if result.job is not None:
                self._run.note_job(task.label, attempt, result.job, row=None if self._row is None else self._row.index)
        except ToolFailed as error:
            value, failure = error.data, error.failure
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=self._place(task, str(error)))
        except NoetlError as error:
            failure = failed_by(error, self._step.name, task.label)
        # What follows is recorded: rules, writes and messages see no more of the input than may be.
        if is_looked_at and task.input.source and "input" in names:
            names["input"] = self._caller.scrubbed_value(names["input"])
        ended = self._clock.monotonic()
        waited = 0.0 if self._limiting is None else self._limiting.waited_seconds()
        if self._row is not None and self._row.profile is not None:
            at = ended if rendered is None else rendered
            cost = Cost(at - started, ended - at - waited, waited)
            self._row.profile.add(task.label, task.kind, cost, has_failed=failure is not None)
        outcome = TaskOutcome(
            value=value,
            failure=None if failure is None else self._caller.scrubbed_failure(failure),
            attempt=attempt,
            duration_ms=round((ended - started - waited) * 1000, 3),
            limit_ms=round(waited * 1000, 3),
            started_at=started_at,
            traceback=traceback,
            facts=facts,
        )
        self._log(task, outcome)
        return outcome

    def _is_looked_at(self, task: CompiledTask) -> bool:
        """Whether anybody may ask how the task ran.  Of a row that ends with it nobody does."""
        return self._row is None or not self._is_last_word(task) or task.label in self._step.kept

    def _is_last_word(self, task: CompiledTask) -> bool:
        """Whether nothing in the pipeline comes behind a task: no other one, no rule, no `set`."""
        return self._run.index + 1 == len(self._step.tasks) and not task.rules and not task.sets

    async def _tool(self, task: CompiledTask, call: ToolCall) -> ToolResult:
        if task.kind == PLAYBOOK:
            raise _Stop(child=await self._child(call))
        return await self._caller.run(task.kind, call)

    async def _begin(self) -> None:
        """Nothing has an effect before the claim is in the ledger; everything before was preparation."""
        if not self._is_confirmed:
            await self._session.confirmed(self._message)
            self._is_confirmed = True

    async def _child(self, call: ToolCall) -> ChildRequest:
        """What to start; a child of a row may know which row that is."""
        request = child_request(self._recordable(call))
        if self._row is None:
            return request
        iteration = {name: one for name, one in _mapping(self._names["iter"]).items() if not holds_parts(one)}
        return replace(request, iteration=self._caller.scrubbed(caller_of(iteration)))

    def _recordable(self, call: ToolCall) -> ToolCall:
        return replace(call, fields=self._caller.scrubbed(call.fields), input=self._caller.scrubbed(call.input))

    def _where(self, task: CompiledTask) -> str:
        return f"step {self._step.name!r}, task {task.label!r}"

    def _place(self, task: CompiledTask, message: str) -> str:
        return f"{self._where(task)}: {message}"

    async def _prepare(self, task: CompiledTask) -> ToolCall:
        """Render the task's input and fields against the running context."""
        names = self._names
        given = await self._input(task)
        names["input"] = given.seen
        scope: Mapping[str, object] = names
        if task.kind not in _INPUT_IS_PRIVATE and given.plain:
            scope = self._scope.with_input(given.names())
        fields: dict[str, object] = {}
        for name, compiled in task.fields.items():
            if name in task.lenient and not self._is_renderable(compiled, scope):
                fields[name] = compiled.source
            else:
                fields[name] = await self._field(compiled, task, name, scope)
        usual = usual_timeout(task.kind, self._playbook.playbook.task_timeout_seconds)
        timeout = usual if task.timeout is None else await self._timeout(task, usual)
        call = ToolCall(
            fields=fields,
            input=given.plain,
            tables=self._caller.tables,
            datasets=self._caller.datasets,
            given_tables=given.tables,
            names=self._row.names if self._row is not None else {},
            context=None,
            timeout_seconds=timeout,
            tenant_id=self._message.tenant_id,
            organization_id=self._message.organization_id,
            execution_id=self._message.execution_id,
            step=self._step.name,
            label=task.label,
            sink=self._caller.sink,
            artifacts=self._caller.artifacts,
            attempt=self._message.attempt,
            jobs=self._caller.jobs.of(task.label, row=None if self._row is None else self._row.index),
            log=self._log_of(task),
            is_row=self._row is not None,
        )
        if task.has_script:
            call = await self._scripted(task, call, scope)
        return await self._informed(call) if task.kind == "python" else call

    async def _input(self, task: CompiledTask) -> Given:
        """The input of a task.  A tool that opens tables is given those that are in it."""
        if not task.input.source:
            return Given({})
        if not self._caller.opens_tables(task.kind) or reads_secrets(task.input):
            return Given(_mapping(await self._field(task.input, task, "input", self._names)))
        try:
            value = await self._rendering.render_with_parts(task.input, self._names)
        except TemplateFailed as error:
            raise type(error)(f"field 'input' of task {task.label!r}: {error}") from error
        owner = {"tenant_id": self._message.tenant_id, "organization_id": self._message.organization_id}
        return await given_of(self._payloads, value, **owner)

    async def _scripted(self, task: CompiledTask, call: ToolCall, scope: Mapping[str, object]) -> ToolCall:
        """The call with its script, which is rendered like a field unless it is a program."""
        # What is pinned is durable when the claim is; what is elsewhere must not be asked for without one.
        await self._begin()
        fields = {name: value for name, value in call.fields.items() if name != SCRIPT}
        script = await self._caller.scripts.load(call.fields.get(SCRIPT), partial(self._ask, call))
        if not is_program(task.kind, script.name):
            text = await self._field(script_template(script.text), task, SCRIPT, scope)
            script = replace(script, text=to_text(text))
        return replace(call, fields=fields, script=script)

    async def _ask(self, call: ToolCall, fields: Mapping[str, object]) -> ToolResult:
        """Ask for a script that is elsewhere."""
        limit = min(call.timeout_seconds, wait_of("timeout", fields.get("timeout"), usual_timeout("http", None)))
        wanted = {name: value for name, value in fields.items() if name != "timeout"}
        asked = replace(call, fields=wanted, input={}, timeout_seconds=limit, sink=None, log=None)
        return await self._caller.run("http", asked)

    async def _informed(self, call: ToolCall) -> ToolCall:
        """The call with the context, if its program can see it."""
        needs = needs_of_program(program_of(call.fields) if call.script is None else call.script.text)
        if not needs.everything and needs.names <= call.input.keys():
            return call
        return replace(call, context=self._caller.scrubbed(await plain_context(self._names)))

    def _is_renderable(self, compiled: CompiledValue, names: Mapping[str, object]) -> bool:
        """Program text is a template only when every name it reads exists."""
        known = {"now", "range"} | self._caller.secrets.names_in(compiled)
        missing = [root for root in compiled.roots if root not in names and root not in known]
        if missing:
            self._warn(f"code is run as it is: {', '.join(sorted(missing))} not defined")
        return bool(compiled.roots) and not missing

    async def _timeout(self, task: CompiledTask, usual: float) -> float:
        assert task.timeout is not None
        return wait_of("timeout", await self._value(task.timeout, task, "timeout"), usual)

    # --- policy --------------------------------------------------------------------------------------------

    def _remember(self, task: CompiledTask, outcome: TaskOutcome) -> None:
        run = self._run
        if task.label not in run.order or run.order[-1] != task.label:
            if task.label in run.order:
                run.order.remove(task.label)
            run.order.append(task.label)
        run.results[task.label] = outcome.value if outcome.failure is None else rooted(outcome.view())
        if self._is_last_word(task):
            return
        self._scope.outcome(run, task.label, outcome)

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
        self._say_again(task, outcome, delay)
        if delay > RETRY_WAIT_IN_WORKER_SECONDS_MAX and self._row is None:
            raise _Stop(wait=Wait(delay, task.label))
        if delay > 0:
            await asyncio.sleep(delay)

    def _log_of(self, task: CompiledTask) -> TaskLog | None:
        row = None if self._row is None else self._row.index
        return self._caller.log_of(task.label, row=row, tried=self._run.attempts[task.label])

    def _say_again(self, task: CompiledTask, outcome: TaskOutcome, delay: float) -> None:
        log = self._log_of(task)
        if log is not None:
            failure = outcome.failure
            reason = "a rule asks for it" if failure is None else f"{failure.kind}: {failure.message}"
            log(f"run {outcome.attempt} is tried again in {delay:g} s: {reason}\n")
            log.end()

    # --- values --------------------------------------------------------------------------------------------

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

    async def _field(self, value: CompiledValue, task: CompiledTask, name: str, names: Mapping[str, object]) -> Any:
        """A field of the task itself.  It may ask for secrets, and for those somebody outside may have to be asked."""
        if not reads_secrets(value):
            return await self._value(value, task, name, names)
        await self._begin()
        try:
            return await self._caller.secrets.render(self._rendering, value, names)
        except TemplateFailed as error:
            raise type(error)(f"field {name!r} of task {task.label!r}: {error}") from error

    def _log(self, task: CompiledTask, outcome: TaskOutcome) -> None:
        if self._row is None and len(self._ended.tasks) < _LOG_TASKS_MAX:  # of a row nobody asks
            self._ended.tasks.append(outcome.entry(task.label))


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
