"""`loop` → where its rows come from and how they are worked off (dsl §4)."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence

from noetl.core.limits import FRAME_ROWS_MAX, LOOP_IN_FLIGHT_DEFAULT
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Loop, Step, Task

LOOP_KEYS = ("in", "cursor", "iterator", "spec", "mode", "concurrency")
SPEC_KEYS = ("mode", "max_in_flight", "policy", "frame", "frame_policy", "engine", "fanout")
FRAME_KEYS_NOT_APPLIED = ("row_concurrency", "lease_seconds", "heartbeat_seconds", "max_seconds", "max_bytes")
FRAME_KEYS = ("max_rows", "process", "retry_mode", "max_attempts", "verify_ipc", *FRAME_KEYS_NOT_APPLIED)
MODES = ("sequential", "parallel", "cursor", "fanout")
FAILURE_MODES = ("fail_fast", "best_effort")
ENGINES = ("auto", "local", "spark")
RETRY_MODES = ("whole_frame",)


def check_loop_mode(executor_spec: Mapping[str, object], steps: Sequence[Step], findings: Findings) -> None:
    """`executor.spec.loop_mode: fanout` is about every parallel loop."""
    if executor_spec.get("loop_mode") != "fanout":
        return
    for step in steps:
        if step.loop is not None and not step.loop.is_sequential:
            message = f"step {step.name!r}: executor.spec.loop_mode: fanout is not supported yet"
            findings.error("unsupported", message, ("executor", "spec", "loop_mode"), step=step.name)


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
    if not loop.is_sequential:
        reader.warn_writes(tasks)
    return loop


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
        spec = loop.get("spec")
        if spec is not None and not isinstance(spec, dict):
            self.error("loop_shape", "loop.spec must be a mapping", "spec")
        spec = spec if isinstance(spec, dict) else {}
        self._unknown(loop, LOOP_KEYS)
        self._unknown(spec, SPEC_KEYS, "spec")
        iterator = self._iterator(loop)
        mode = self._mode(loop, spec)
        if ("in" in loop) == ("cursor" in loop):
            self.error("loop_source", "loop needs exactly one of `in` and `cursor`")
        if "cursor" in loop:
            self.error("unsupported", "loop.cursor is not supported yet: loop over a collection with `in`", "cursor")
        elif mode in ("cursor", "fanout"):
            self.error("unsupported", f"loop.spec.mode: {mode} is not supported yet", "spec", "mode")
        elif isinstance(step_spec, dict) and step_spec.get("loop_mode") == "fanout" and mode == "parallel":
            self.error("unsupported", "spec.loop_mode: fanout is not supported yet")
        self._engine(spec)
        frame = self._frame(spec)
        return Loop(
            collection=loop.get("in"),
            iterator=iterator or "item",
            is_sequential=mode == "sequential",
            max_in_flight=self._in_flight(loop, spec, mode),
            is_best_effort=self._failure_mode(step_spec) == "best_effort",
            frame_rows=frame.get("max_rows"),
            max_attempts=frame.get("max_attempts"),
            retry_mode="whole_frame" if frame.get("retry_mode") else None,
            place=self._place,
        )

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

    def _mode(self, loop: Mapping[str, object], spec: Mapping[str, object]) -> str:
        mode = spec.get("mode")
        if mode is None and "mode" in loop:
            self._warn("loop_mode_place", "write loop.mode as loop.spec.mode", "mode")
            mode = loop["mode"]
        if mode is None:
            return "cursor" if "cursor" in loop else "sequential"
        if mode not in MODES:
            hint = self._findings.suggestion(str(mode), MODES)
            self.error("loop_mode", f"unknown loop.spec.mode {mode!r}{hint}", "spec", "mode")
            return "sequential"
        return str(mode)

    def _in_flight(self, loop: Mapping[str, object], spec: Mapping[str, object], mode: str) -> object:
        value = spec.get("max_in_flight")
        if value is None and "concurrency" in loop:
            self._warn("loop_mode_place", "write loop.concurrency as loop.spec.max_in_flight", "concurrency")
            value = loop["concurrency"]
        if mode == "sequential":
            if value not in (None, 1):
                self._warn("loop_in_flight", "a sequential loop runs one item at a time", "spec", "max_in_flight")
            return 1
        if value is None:
            return LOOP_IN_FLIGHT_DEFAULT
        if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 1):
            message = f"loop.spec.max_in_flight must be a whole number from 1 or a template, not {value!r}"
            self.error("loop_in_flight", message, "spec", "max_in_flight")
            return LOOP_IN_FLIGHT_DEFAULT
        return value

    def _failure_mode(self, step_spec: object) -> str:
        policy = step_spec.get("policy") if isinstance(step_spec, dict) else None
        failure = policy.get("failure") if isinstance(policy, dict) else None
        mode = failure.get("mode") if isinstance(failure, dict) else None
        if mode is not None and mode not in FAILURE_MODES:
            hint = self._findings.suggestion(str(mode), FAILURE_MODES)
            message = f"step {self._step!r}: unknown spec.policy.failure.mode {mode!r}{hint}"
            place = (*self._place[:-1], "spec", "policy", "failure", "mode")
            self._findings.error("failure_mode", message, place, step=self._step)
        return str(mode or "fail_fast")

    def _engine(self, spec: Mapping[str, object]) -> None:
        engine = spec.get("engine", "auto")
        if engine not in ENGINES:
            hint = self._findings.suggestion(str(engine), ENGINES)
            self.error("loop_engine", f"unknown loop.spec.engine {engine!r}{hint}", "spec", "engine")
        elif engine == "spark":
            self.error("unsupported", "loop.spec.engine: spark is not supported yet", "spec", "engine")

    def _frame(self, spec: Mapping[str, object]) -> dict[str, int | None]:
        name = "frame_policy" if "frame_policy" in spec and "frame" not in spec else "frame"
        frame, place, where = spec.get(name), ("spec", name), f"loop.spec.{name}"
        if frame is None:
            return {}
        if not isinstance(frame, dict):
            self.error("frame_policy", f"{where} must be a mapping", *place)
            return {}
        self._unknown(frame, FRAME_KEYS, *place)
        for key in FRAME_KEYS_NOT_APPLIED:
            if key in frame:
                self._warn("not_applied", f"{where}.{key} is not applied to a collection", *place, key)
        process, retry_mode = frame.get("process", "row"), frame.get("retry_mode")
        if process != "row":
            self.error("unsupported", f"{where}.process: {process} is not supported yet", *place, "process")
        if retry_mode not in (None, *RETRY_MODES):
            hint = self._findings.suggestion(str(retry_mode), RETRY_MODES)
            self.error("frame_policy", f"unknown {where}.retry_mode {retry_mode!r}{hint}", *place, "retry_mode")
        found: dict[str, int | None] = {"retry_mode": 1 if frame.get("retry_mode") else None}
        for key, high in (("max_rows", FRAME_ROWS_MAX), ("max_attempts", 100)):
            value = frame.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                message = f"{where}.{key} must be a whole number from 1 to {high}, not {value!r}"
                self.error("frame_policy", message, *place, key)
            else:
                found[key] = value
        return found
