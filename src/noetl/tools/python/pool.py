"""The worker's pool of child processes for user Python and for templates with loops.

Turns tasks into requests and answers into outcomes.  No user code runs in this process, and what a child
answers is checked like any data from outside.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl.core import limits
from noetl.core.errors import Failure, TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression import pack, plain
from noetl.tools.python import wire
from noetl.tools.python.child.namespace import needs_context
from noetl.tools.python.links import ChildLink, Key, Row
from noetl.tools.python.output import TextSink
from noetl.tools.python.roster import PoolStats, Roster, RosterSettings
from noetl.tools.python.rows import RowQueues

# Anything that is not plain data, a view of a result for example, is sent as the plain data behind it.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=plain).encode

_UNSENDABLE = (ValueError, TypeError, RecursionError, TemplateFailed)

_TEMPLATE_ERRORS: dict[str | None, type[TemplateFailed | TemplateInvalid]] = {
    error.code: error for error in (TemplateFailed, TemplateInvalid, TemplateRefused)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTask:
    """User code and what it is given."""

    code: str
    input: Mapping[str, object]
    names: Mapping[str, object]
    """Loop names; an input of the same name wins."""
    context: Mapping[str, object] | None
    """Sent only if `namespace.needs_context(code)`, so build it only then."""
    libs: Mapping[str, object]
    env: Mapping[str, str]
    timeout_seconds: float
    """Counted from the moment a child takes the task, without the time in the queue."""
    filename: str
    """Shown in tracebacks."""
    landing: str | None = None
    """A folder for what does not go through the connection; without it everything does."""
    shared: tuple[str, str, int, int] | None = None
    """A better place for tables: a folder, what names in it begin with, and where a stream starts."""
    tables: Mapping[str, object] | None = None
    """Tables in `input`, where null stands for them: as what, and where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    value: object
    failure: Failure | None
    traceback: str | None
    dropped_chars: int
    """How much of what the code printed was lost, because it printed faster than this process read."""
    pid: int
    """The child; 0 when the task reached none."""
    seconds: float
    left_behind: str | None
    """What the code left behind, so that its child cannot be used again."""
    landed: list[Any]
    """Parts of the value that are files in the landing folder, as the child says."""
    is_answered: bool
    """Whether the child lived to answer: then it has left nothing that it does not name."""


class ChildPool:
    """Bound to the event loop that starts it."""

    def __init__(
        self,
        *,
        children_max: int = limits.PYTHON_CHILDREN_MAX,
        memory_bytes_max: int = limits.PYTHON_MEMORY_BYTES_MAX,
        tasks_per_child_max: int = limits.PYTHON_CHILD_TASKS_MAX,
        result_bytes_max: int = limits.RESULT_BYTES_MAX,
        warm: int = 1,
    ) -> None:
        assert children_max >= 1
        assert 0 <= warm <= children_max
        assert tasks_per_child_max >= 1
        assert 0 < result_bytes_max <= limits.RESULT_BYTES_MAX
        self._cores = len(os.sched_getaffinity(0))
        self._settings = RosterSettings(
            children_max=children_max,
            warm=warm,
            tasks_per_child_max=tasks_per_child_max,
            memory_bytes_max=memory_bytes_max,
            result_bytes_max=result_bytes_max,
        )
        self._roster: Roster | None = None
        self._rows: RowQueues | None = None

    async def start(self) -> None:
        """Start the zygote and ask for the warm children.  Does not wait for them; the first task does."""
        self._started()

    async def close(self) -> None:
        """End everything, at most a few seconds later.  Tasks under way fail with kind `cancelled`."""
        if self._roster is not None and self._rows is not None:
            self._rows.close()
            await self._roster.close()

    def stats(self) -> PoolStats:
        if self._roster is None or self._rows is None:
            return PoolStats()
        return self._roster.stats(rows_waiting=self._rows.waiting)

    async def run(
        self,
        task: PythonTask,
        *,
        tenant: str = "default",
        organization: str = "default",
        log: TextSink | None = None,
    ) -> TaskOutcome:
        """Run user code in a child.  Failures of the code are in the outcome; nothing is raised for them.

        What it prints goes to `log` while it runs, and all of it before this returns."""
        request = {"kind": "run", "filename": task.filename, **_own_fields(task), **_common_fields(task)}
        return await self._call(task.code, request, task.timeout_seconds, (tenant, organization), log)

    async def run_row(
        self,
        task: PythonTask,
        *,
        tenant: str = "default",
        organization: str = "default",
        log: TextSink | None = None,
    ) -> TaskOutcome:
        """Like `run`, for one of many equal tasks that are under way at the same time: they share messages."""
        _roster, rows = self._started()
        common = _common_fields(task)
        try:
            fields = wire.text(_encode(_own_fields(task)))
            wire.header(len(fields) + len(task.code) * wire.CHARACTER_BYTES_MAX + wire.ENVELOPE_BYTES_MAX)
            more = _encode(common) if common else ""
        except _UNSENDABLE as error:
            return _unsent(error)
        group = rows.group(((tenant, organization), task.code, task.timeout_seconds, task.filename, more))
        row = Row(fields, rows.loop.create_future(), log)
        group.add(row)
        try:
            return _outcome(await row.future, row)
        except asyncio.CancelledError:
            group.remove(row)
            raise

    async def render(
        self,
        source: object,
        names: Mapping[str, object],
        *,
        now: str | None,
        timeout_seconds: float,
        tenant: str = "default",
        organization: str = "default",
        strict: bool = False,
    ) -> object:
        """Render a template that may loop.  Names may be views; they are views again in the child.

        Raises TemplateInvalid, TemplateFailed, or TemplateRefused for limits, time included.
        """
        request = {"kind": "render", "source": source, "names": pack(names), "now": now, "strict": strict}
        outcome = await self._call("", request, timeout_seconds, (tenant, organization))
        failure = outcome.failure
        if failure is None:
            return outcome.value
        if failure.kind == "timeout":
            raise TemplateRefused(f"the template took longer than {timeout_seconds:g} s")
        raise _TEMPLATE_ERRORS.get(failure.code, TemplateFailed)(failure.message)

    def _started(self) -> tuple[Roster, RowQueues]:
        if self._roster is None or self._rows is None:
            loop = asyncio.get_running_loop()
            self._roster = Roster(self._settings, loop)
            self._rows = RowQueues(self._roster, loop, cores=self._cores, children_max=self._settings.children_max)
            self._roster.fill()
        return self._roster, self._rows

    async def _call(
        self,
        code: str,
        request: dict[str, object],
        timeout_seconds: float,
        key: Key,
        log: TextSink | None = None,
    ) -> TaskOutcome:
        roster, rows = self._started()
        try:
            sized = wire.sized(wire.with_length(code), wire.text(_encode(request)))
        except _UNSENDABLE as error:
            return _unsent(error)
        row = Row(b"", rows.loop.create_future(), log)
        child = await roster.acquire(key)
        if not isinstance(child, ChildLink):
            return _outcome(child, row)
        roster.exchange.send(child, [row], sized, timeout_seconds, None)
        try:
            return _outcome(await row.future, row)
        except asyncio.CancelledError:
            roster.exchange.abandon(row)
            raise


def _own_fields(task: PythonTask) -> dict[str, object]:
    """What each row has for itself."""
    fields: dict[str, object] = {"input": task.input}
    if task.names:
        fields["names"] = task.names
    if task.context and needs_context(task.code):
        fields["context"] = task.context
    if task.tables is not None:
        fields["tables"] = task.tables
    return fields


def _common_fields(task: PythonTask) -> dict[str, object]:
    fields: dict[str, object] = {}
    if task.libs:
        fields["libs"] = task.libs
    if task.env:
        fields["env"] = task.env
    if task.landing is not None:
        fields["landing"] = task.landing
    if task.shared is not None:
        fields["shared"] = task.shared
    return fields


def _unsent(error: Exception) -> TaskOutcome:
    failure = _invalid("INPUT_INVALID", f"the input cannot be given to the code: {error}")
    return _outcome(failure, None)


def _outcome(answer: bytes | Failure, row: Row | None) -> TaskOutcome:
    reply: dict[str, Any] = {}
    failure: Failure | None = None
    if isinstance(answer, Failure):
        failure = answer
    else:
        try:
            reply = _checked(wire.decode(memoryview(answer)[wire.ANSWER_PREFIX_BYTES :]))
            failure = _failure(reply["failure"]) if "failure" in reply else None
        except wire.FrameInvalid as error:
            reply, failure = (
                {},
                _invalid("RESULT_INVALID", f"the answer of the Python process is wrong: {error}"),
            )
    return TaskOutcome(
        value=reply.get("value"),
        failure=failure,
        traceback=reply.get("traceback"),
        dropped_chars=reply.get("dropped", 0),
        pid=row.pid if row is not None else 0,
        seconds=row.seconds if row is not None else 0.0,
        left_behind=reply.get("left_behind"),
        landed=reply.get("landed", []),
        is_answered=not isinstance(answer, Failure),
    )


_MEMBERS: dict[str, tuple[type, ...]] = {
    "value": (object,),
    "failure": (dict,),
    "traceback": (str, type(None)),
    "dropped": (int,),
    "left_behind": (str,),
    "landed": (list,),
}


def _checked(reply: object) -> dict[str, Any]:
    """User code can write to the socket itself, so the shape of an answer is not certain."""
    if not isinstance(reply, dict) or ("value" in reply) == ("failure" in reply):
        raise wire.FrameInvalid("it has another shape")
    for name, member in reply.items():
        if name not in _MEMBERS or not isinstance(member, _MEMBERS[name]):
            raise wire.FrameInvalid("it has another shape")
    return reply


def _failure(reply: dict[str, Any]) -> Failure:
    try:
        failure = Failure(**reply)
    except TypeError as error:
        raise wire.FrameInvalid("it has another shape") from error
    texts = (failure.kind, failure.message, failure.code or "", failure.exception_type or "")
    if not all(isinstance(text, str) and len(text) <= limits.ERROR_MESSAGE_CHARS_MAX for text in texts):
        raise wire.FrameInvalid("it has another shape")
    if not isinstance(failure.details, dict) or not isinstance(failure.retryable, bool):
        raise wire.FrameInvalid("it has another shape")
    return failure


def _invalid(code: str, message: str) -> Failure:
    return Failure(kind="python", code=code, message=message[: limits.ERROR_MESSAGE_CHARS_MAX])
