"""`loop` → where its rows come from and how they are worked off (dsl §4)."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import replace

from noetl.core.limits import LOOP_IN_FLIGHT_DEFAULT
from noetl.core.locator.locality import DISTANCES
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.frame_fields import (
    CURSOR_OPTIONS,
    FANOUT_FIELDS,
    FRAME_FIELDS,
    LOCALITY_FIELDS,
    Check,
    FieldInvalid,
    checked,
    is_template,
)
from noetl.core.playbook.model import Cursor, Loop, LoopMode, Step, Task

LOOP_KEYS = ("in", "cursor", "iterator", "spec", "mode", "concurrency")
SPEC_KEYS = ("mode", "max_in_flight", "policy", "frame", "frame_policy", "engine", "fanout", "locality")
CURSOR_KEYS = ("kind", "auth", "claim", "options")
CURSOR_KINDS = ("postgres",)
# The session's heartbeat is the lease of everything that a worker holds.
FRAME_KEYS_NOT_APPLIED = ("lease_seconds", "heartbeat_seconds")
MODES = tuple(str(mode) for mode in LoopMode)
FAILURE_MODES = ("fail_fast", "best_effort")
ENGINES = ("auto", "local", "spark")


def fanned_out(executor_spec: Mapping[str, object], steps: Sequence[Step]) -> tuple[Step, ...]:
    """`executor.spec.loop_mode: fanout` makes every parallel loop one."""
    if executor_spec.get("loop_mode") != "fanout":
        return tuple(steps)
    return tuple(_fanned_out(step) for step in steps)


def _fanned_out(step: Step) -> Step:
    loop = step.loop
    if loop is None or loop.mode is not LoopMode.PARALLEL:
        return step
    return replace(step, loop=replace(loop, mode=LoopMode.FANOUT))


def read_loop(
    step: str, entry: Mapping[str, object], path: Path, findings: Findings, tasks: Sequence[Task] = ()
) -> Loop | None:
    """None when the step has no `loop`, or one that cannot be read."""
    if "loop" not in entry:
        return None
    reader = _Reader(step, (*path, "loop"), findings)
    given = entry["loop"]
    if not isinstance(given, dict):
        reader.error("loop_shape", "loop must be a mapping with `in` and `iterator`")
        return None
    loop = reader.read(given, entry.get("spec"))
    if not _is_one_at_a_time(loop):
        reader.warn_writes(tasks)
    return loop


def _is_one_at_a_time(loop: Loop) -> bool:
    if loop.mode is LoopMode.CURSOR:
        return loop.max_in_flight == 1 and loop.frame.get("row_concurrency", 1) == 1
    return loop.is_sequential


def _is_context(key: str) -> bool:
    """Whether a key of a rule's `set` is one of ctx; a bare key is."""
    scope, _, rest = key.partition(".")
    return scope not in ("iter", "step") or not rest


class _Reader:
    def __init__(self, step: str, place: Path, findings: Findings) -> None:
        self._step = step
        self._place = place
        self._findings = findings

    def error(self, code: str, message: str, *keys: str | int) -> None:
        self._findings.error(code, f"step {self._step!r}: {message}", (*self._place, *keys), step=self._step)

    def _warn(self, code: str, message: str, *keys: str | int) -> None:
        self._findings.warn(code, f"step {self._step!r}: {message}", (*self._place, *keys), step=self._step)

    def warn_writes(self, tasks: Sequence[Task]) -> None:
        """Which of many rows at the same time writes last is a matter of luck."""
        keys = [key for task in tasks for key in task.set if key.startswith("ctx.")]
        keys += [key for task in tasks for rule in task.rules for key in rule.set if _is_context(key)]
        for key in dict.fromkeys(keys):
            self._warn("ctx_write_in_parallel_loop", f"rows at the same time write {key!r}: the last one wins")

    def read(self, loop: Mapping[str, object], step_spec: object) -> Loop:
        spec = self._mapping(loop, "spec", code="loop_shape")
        self._unknown(loop, LOOP_KEYS)
        self._unknown(spec, SPEC_KEYS, "spec")
        iterator = self._iterator(loop)
        mode = self._mode(loop, spec, step_spec)
        if ("in" in loop) == ("cursor" in loop):
            self.error("loop_source", "loop needs exactly one of `in` and `cursor`")
        elif ("cursor" in loop) != (mode is LoopMode.CURSOR):
            message = f"loop.spec.mode: {mode} and loop.{'cursor' if 'cursor' in loop else 'in'} do not go together"
            self.error("loop_source", message, "spec", "mode")
        self._engine(spec)
        failure_mode = self._failure_mode(step_spec)
        return Loop(
            collection=loop.get("in"),
            iterator=iterator or "item",
            mode=mode,
            max_in_flight=self._in_flight(loop, spec, mode),
            is_best_effort=None if failure_mode is None else failure_mode == "best_effort",
            frame=self._frame(spec, mode),
            fanout=self._fields(spec, "fanout", FANOUT_FIELDS, "fanout", "spec"),
            locality=self._fields(spec, "locality", LOCALITY_FIELDS, "locality", "spec"),
            cursor=self._cursor(loop) if "cursor" in loop else None,
            place=self._place,
        )

    def _mapping(self, given: Mapping[str, object], name: str, *keys: str, code: str) -> dict[str, object]:
        value = given.get(name)
        if value is not None and not isinstance(value, dict):
            self.error(code, f"{'.'.join(('loop', *keys, name))} must be a mapping", *keys, name)
        return value if isinstance(value, dict) else {}

    def _unknown(self, given: Mapping[str, object], known: tuple[str, ...], *keys: str) -> None:
        for key in given:
            if key not in known:
                hint = self._findings.suggestion(str(key), known)
                name = ".".join(("loop", *keys, str(key)))
                self._warn("unknown_loop_key", f"unknown key {name!r} is ignored{hint}", *keys, str(key))

    def _iterator(self, loop: Mapping[str, object]) -> str | None:
        iterator = loop.get("iterator")
        if not isinstance(iterator, str) or not iterator.isidentifier() or keyword.iskeyword(iterator):
            self.error("loop_iterator", "loop.iterator is required and must be an identifier", "iterator")
            return None
        return iterator

    def _mode(self, loop: Mapping[str, object], spec: Mapping[str, object], step_spec: object) -> LoopMode:
        mode = spec.get("mode")
        if mode is None and "mode" in loop:
            self._warn("loop_mode_place", "write loop.mode as loop.spec.mode", "mode")
            mode = loop["mode"]
        if mode is None:
            return LoopMode.CURSOR if "cursor" in loop else LoopMode.SEQUENTIAL
        if mode not in MODES:
            hint = self._findings.suggestion(str(mode), MODES)
            self.error("loop_mode", f"unknown loop.spec.mode {mode!r}{hint}", "spec", "mode")
            return LoopMode.CURSOR if "cursor" in loop else LoopMode.SEQUENTIAL
        is_fanned_out = isinstance(step_spec, dict) and step_spec.get("loop_mode") == "fanout"
        return LoopMode.FANOUT if is_fanned_out and mode == "parallel" else LoopMode(str(mode))

    def _in_flight(self, loop: Mapping[str, object], spec: Mapping[str, object], mode: LoopMode) -> object:
        value = spec.get("max_in_flight")
        if value is None and "concurrency" in loop:
            self._warn("loop_mode_place", "write loop.concurrency as loop.spec.max_in_flight", "concurrency")
            value = loop["concurrency"]
        if mode is LoopMode.SEQUENTIAL:
            if value not in (None, 1):
                self._warn("loop_in_flight", "a sequential loop runs one item at a time", "spec", "max_in_flight")
            return 1
        default = 1 if mode is LoopMode.CURSOR else LOOP_IN_FLIGHT_DEFAULT
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 1):
            message = f"loop.spec.max_in_flight must be a whole number from 1 or a template, not {value!r}"
            self.error("loop_in_flight", message, "spec", "max_in_flight")
            return default
        return value

    def _failure_mode(self, step_spec: object) -> str | None:
        policy = step_spec.get("policy") if isinstance(step_spec, dict) else None
        failure = policy.get("failure") if isinstance(policy, dict) else None
        mode = failure.get("mode") if isinstance(failure, dict) else None
        if mode is not None and mode not in FAILURE_MODES:
            hint = self._findings.suggestion(str(mode), FAILURE_MODES)
            message = f"step {self._step!r}: unknown spec.policy.failure.mode {mode!r}{hint}"
            place = (*self._place[:-1], "spec", "policy", "failure", "mode")
            self._findings.error("failure_mode", message, place, step=self._step)
        return None if mode is None else str(mode)

    def _engine(self, spec: Mapping[str, object]) -> None:
        engine = spec.get("engine", "auto")
        if engine not in ENGINES:
            hint = self._findings.suggestion(str(engine), ENGINES)
            self.error("loop_engine", f"unknown loop.spec.engine {engine!r}{hint}", "spec", "engine")
        elif engine == "spark":
            self.error("unsupported", "loop.spec.engine: spark is not supported yet", "spec", "engine")

    # --- frames, shards, cursors -----------------------------------------------------------------------------

    def _frame(self, spec: Mapping[str, object], mode: LoopMode) -> Mapping[str, object]:
        name = "frame_policy" if "frame_policy" in spec and "frame" not in spec else "frame"
        found = self._fields(spec, name, FRAME_FIELDS, "frame_policy", "spec")
        if mode is LoopMode.CURSOR:
            return found
        not_applied: tuple[str, ...] = FRAME_KEYS_NOT_APPLIED
        if mode is LoopMode.FANOUT:
            not_applied = ("max_rows", *not_applied)
        for key in not_applied:
            if key in found:
                where = f"loop.spec.{name}.{key}"
                hint = "; use loop.spec.fanout.shard_size" if key == "max_rows" else ""
                self._warn("not_applied", f"{where} is not applied to a collection{hint}", "spec", name, key)
        return found

    def _fields(
        self, given: Mapping[str, object], name: str, fields: Mapping[str, Check], code: str, *keys: str
    ) -> Mapping[str, object]:
        """A block of fields that may be templates; what is none must be right at once."""
        block = self._mapping(given, name, *keys, code=code)
        self._unknown(block, tuple(fields), *keys, name)
        where = ".".join(("loop", *keys, name))
        for key, value in block.items():
            if key in fields and not is_template(value):
                try:
                    checked(fields, {key: value})
                except FieldInvalid as error:
                    hint = self._findings.suggestion(str(value), ("row", "frame", "whole_frame", *DISTANCES))
                    self.error(code, f"{where}.{error}{hint}", *keys, name, key)
        return {key: value for key, value in block.items() if key in fields and value is not None}

    def _cursor(self, loop: Mapping[str, object]) -> Cursor:
        cursor = self._mapping(loop, "cursor", code="cursor_shape")
        self._unknown(cursor, CURSOR_KEYS, "cursor")
        kind, claim, auth = cursor.get("kind", CURSOR_KINDS[0]), cursor.get("claim"), cursor.get("auth")
        if kind not in CURSOR_KINDS:
            known = " or ".join(CURSOR_KINDS)
            self.error("unsupported", f"loop.cursor.kind {kind!r} has no driver: use {known}", "cursor", "kind")
        if not isinstance(claim, str) or not claim.strip():
            message = "loop.cursor.claim is required: SQL that marks rows as taken and returns them"
            self.error("cursor_claim", message, "cursor", *(("claim",) if "claim" in cursor else ()))
        if auth is None or auth == "":
            message = "loop.cursor.auth is required: it names the credential of the database"
            self.error("cursor_auth", message, "cursor", *(("auth",) if "auth" in cursor else ()))
        return Cursor(
            kind=str(kind),
            auth=auth,
            claim=claim if isinstance(claim, str) else "",
            options=self._fields(cursor, "options", CURSOR_OPTIONS, "cursor_options", "cursor"),
            place=(*self._place, "cursor"),
        )
