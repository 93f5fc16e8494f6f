"""`tool` in its four shapes → an ordered list of tasks with their policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl.core.limits import TASKS_PER_STEP_MAX
from noetl.core.permits.rates import Allowance
from noetl.core.playbook.document import Findings, Path, Spot
from noetl.core.playbook.limits.reading import FIELD as LIMIT
from noetl.core.playbook.limits.reading import read_limit
from noetl.core.playbook.model import Task
from noetl.core.playbook.reading.kinds import COMMON_KEYS, check_fields, read_kind
from noetl.core.playbook.reading.policy import read_policy
from noetl.core.playbook.reading.retry import read_retry
from noetl.core.playbook.reading.workbook import KIND as WORKBOOK
from noetl.core.playbook.reading.workbook import Entry, replaced
from noetl.core.playbook.scripts import read_script
from noetl.core.playbook.storage.reading import tool_hints

SPEC_KEYS_KEPT = frozenset(("policy", "timeout", "result"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a task can be: a kind that is installed, or an entry of the playbook's own workbook."""

    kinds: frozenset[str]
    workbook: Mapping[str, Entry] = field(default_factory=dict)
    limits: Mapping[str, Allowance] = field(default_factory=dict)


def read_tasks(
    step: str, tool: object, *, step_input: Mapping[str, object], path: Path, findings: Findings, tools: Tools
) -> tuple[Task, ...]:
    if tool is None:
        return (Task(label=f"{step}_task", kind="noop", config={}, input=step_input, set={}, rules=()),)
    reader = _Reader(step, step_input, findings, tools)
    if isinstance(tool, dict) and "kind" in tool:
        tasks = [reader.read(f"{step}_task", tool, path)]
    elif isinstance(tool, list):
        tasks = reader.read_list(tool, path)
    else:
        message = f"step {step!r}: tool must be a mapping with `kind`, or a list of such mappings"
        findings.error("tool_shape", message, path, step=step)
        return ()
    reader.check_jumps(tasks)
    return tuple(tasks)


def _labelled(number: int, entry: object) -> tuple[str, dict[str, object]] | None:
    if not isinstance(entry, dict):
        return None
    if "kind" in entry:
        return str(entry.get("name") or f"task_{number}"), entry
    if len(entry) == 1:
        label, config = next(iter(entry.items()))
        if isinstance(config, dict) and "kind" in config:
            return label, config
    return None


class _Reader:
    """Reads the tasks of one step."""

    def __init__(self, step: str, step_input: Mapping[str, object], findings: Findings, tools: Tools) -> None:
        self._step = step
        self._step_input = step_input
        self._findings = findings
        self._tools = tools

    def read_list(self, tool: list[object], path: Path) -> list[Task]:
        spot = Spot(self._findings, f"step {self._step!r}", path, self._step)
        if not tool:
            spot.error("tool_empty", "the list of tools is empty")
        if len(tool) > TASKS_PER_STEP_MAX:
            spot.error("too_many_tasks", f"tool has {len(tool):,} tasks, the limit is {TASKS_PER_STEP_MAX}")
            return []
        tasks: list[Task] = []
        labels: set[str] = set()
        for number, entry in enumerate(tool):
            named = _labelled(number, entry)
            if named is None:
                spot.error("tool_shape", f"task {number} has neither `kind` nor one label with a tool", number)
                continue
            label, config = named
            if label in labels:
                spot.error("duplicate_label", f"the task label {label!r} is used twice", number)
            labels.add(label)
            tasks.append(self.read(label, config, (*path, number) if config is entry else (*path, number, label)))
        return tasks

    def check_jumps(self, tasks: list[Task]) -> None:
        labels = {task.label for task in tasks}
        for task in tasks:
            for rule in task.rules:
                if rule.to is not None and rule.to not in ("previous", "prev") and rule.to not in labels:
                    spot = self._spot(task.label, rule.then_place)
                    hint = spot.near(rule.to, labels)
                    spot.error("unknown_label", f"jump to unknown label {rule.to!r}{hint}", "to")

    def read(self, label: str, entry: Mapping[str, object], path: Path) -> Task:
        spot = own = self._spot(label, path)
        called = entry
        kind = read_kind(entry["kind"], spot, self._tools.kinds | {WORKBOOK})
        if kind == WORKBOOK:
            found = replaced(entry, spot, step_input=self._step_input, entries=self._tools.workbook)
            if found is None:
                return Task(label=label, kind=kind, config={}, input={}, set={}, rules=(), place=path)
            entry, spot = found.fields, self._spot(label, found.place)
            kind = str(entry["kind"]).lower()
        fields = read_script(kind, check_fields(kind, _hoisted(entry, spot), spot), spot)
        for key, hint in (("eval", "use spec.policy.rules"), ("set_vars", "use set")):
            if key in fields:
                spot.error("retired_task_key", f"{key!r} is retired, {hint}", key)
        spec = fields.get("spec")
        policy = spec.get("policy") if isinstance(spec, dict) else None
        rules, unmatched = read_policy(policy, (own if "spec" in called else spot).at("spec", "policy"))
        retry = None
        if "retry" in fields:
            retry = read_retry(fields["retry"], (own if "retry" in called else spot).at("retry"))
        return Task(
            label=label,
            kind=kind,
            config=_own_config(fields),
            input={**self._step_input, **_input(fields, spot)},
            set=_mapping("set", fields.get("set"), spot),
            rules=(retry, *rules) if retry is not None else rules,
            fails_unmatched=unmatched,
            timeout=fields.get("timeout", fields.get("timeout_seconds")),
            output=tool_hints(fields, spot),
            limit=read_limit(fields.get(LIMIT), own if LIMIT in called else spot, self._tools.limits),
            place=spot.place,
        )

    def _spot(self, label: str, place: Path) -> Spot:
        return Spot(self._findings, f"step {self._step!r}, task {label!r}", place, self._step)


def _input(fields: Mapping[str, object], spot: Spot) -> Mapping[str, object]:
    given = fields.get("input")
    if given is None and isinstance(fields.get("args"), dict):
        spot.warn("deprecated_args", "use input instead of args", "args")
        given = fields["args"]
    return _mapping("input", given, spot)


def _mapping(key: str, value: object, spot: Spot) -> Mapping[str, object]:
    if value is not None and not isinstance(value, dict):
        spot.error(f"{key}_shape", f"{key} must be a mapping", key)
    return value if isinstance(value, dict) else {}


def _hoisted(entry: Mapping[str, object], spot: Spot) -> dict[str, object]:
    """Tool fields that were written below `spec` belong to the tool."""
    fields = dict(entry)
    spec = entry.get("spec")
    if not isinstance(spec, dict):
        return fields
    for key in spec:
        if key not in SPEC_KEYS_KEPT:
            spot.warn("tool_field_in_spec", f"{key!r} belongs to the tool, not to spec", "spec", key)
            fields.setdefault(key, spec[key])
    if "timeout" in spec and not isinstance(spec["timeout"], dict):
        fields.setdefault("timeout", spec["timeout"])
    return fields


def _own_config(fields: Mapping[str, object]) -> dict[str, object]:
    """What the tool itself reads.  `args` is another word for `input` only when it is a mapping, and a timeout that
    is one has parts (`connect`, `read`) that only the tool understands."""
    config = {key: value for key, value in fields.items() if key not in COMMON_KEYS or key == "auth"}
    if isinstance(fields.get("args"), list):
        config["args"] = fields["args"]
    spec = fields.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("timeout"), dict):
        config["timeout"] = spec["timeout"]
    return config
