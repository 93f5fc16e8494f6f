"""`tool` in its four shapes → an ordered list of tasks with their policies."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Task
from noetl.core.playbook.reading.policy import read_policy

# Kinds of the language.  One that is not installed passes with a warning and fails with `unsupported`.
LANGUAGE_KINDS = frozenset(
    (
        *(
            "spark",
            "python",
            "postgres",
            "http",
            "playbook",
            "duckdb",
            "noop",
            "workbook",
            "nats",
            "artifact",
        ),
        *("transfer", "shell", "snowflake", "ducklake", "container", "subscription", "script", "agent"),
        *("secrets", "gcs", "mcp", "gateway", "rhai", "wasm", "result_fetch", "playbooks", "iterator"),
        *("snowflake_transfer", "task_sequence"),
    )
)
COMMON_KEYS = frozenset(
    (
        *("kind", "name", "desc", "input", "args", "auth", "spec", "set", "output", "output_select"),
        *("timeout", "timeout_seconds", "retry"),
    )
)
SPEC_KEYS_KEPT = frozenset(("policy", "timeout", "result"))


def read_tasks(
    step: str,
    tool: object,
    *,
    step_input: Mapping[str, object],
    path: Path,
    findings: Findings,
    kinds: frozenset[str],
) -> tuple[Task, ...]:
    if tool is None:
        return (Task(label=f"{step}_task", kind="noop", config={}, input=step_input, set={}, rules=()),)
    if isinstance(tool, dict) and "kind" in tool:
        task = _read_task(step, f"{step}_task", tool, step_input=step_input, path=path, findings=findings, kinds=kinds)
        _check_jumps(step, [task], findings)
        return (task,)
    if not isinstance(tool, list):
        message = f"step {step!r}: tool must be a mapping with `kind`, or a list of such mappings"
        findings.error("tool_shape", message, path, step=step)
        return ()
    if not tool:
        findings.error("tool_empty", f"step {step!r}: the list of tools is empty", path, step=step)
    tasks: list[Task] = []
    labels: set[str] = set()
    for number, entry in enumerate(tool):
        named = _labelled(number, entry)
        if named is None:
            message = f"step {step!r}: task {number} has neither `kind` nor one label with a tool"
            findings.error("tool_shape", message, (*path, number), step=step)
            continue
        label, config = named
        if label in labels:
            message = f"step {step!r}: the task label {label!r} is used twice"
            findings.error("duplicate_label", message, (*path, number), step=step)
        labels.add(label)
        place = (*path, number) if "kind" in entry else (*path, number, label)
        tasks.append(_read_task(step, label, config, step_input=step_input, path=place, findings=findings, kinds=kinds))
    _check_jumps(step, tasks, findings)
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


def _check_jumps(step: str, tasks: list[Task], findings: Findings) -> None:
    labels = {task.label for task in tasks}
    for task in tasks:
        for rule in task.rules:
            if rule.to is not None and rule.to not in ("previous", "prev") and rule.to not in labels:
                message = f"step {step!r}, task {task.label!r}: jump to unknown label {rule.to!r}"
                hint = findings.suggestion(rule.to, labels)
                findings.error("unknown_label", message + hint, (*rule.place, "then", "to"), step=step)


def _read_task(
    step: str,
    label: str,
    entry: Mapping[str, object],
    *,
    step_input: Mapping[str, object],
    path: Path,
    findings: Findings,
    kinds: frozenset[str],
) -> Task:
    where = f"step {step!r}, task {label!r}"
    kind = _read_kind(where, entry["kind"], (*path, "kind"), findings=findings, kinds=kinds, step=step)
    fields = _hoist(where, entry, path, findings, step)
    for key, hint in (("eval", "use spec.policy.rules"), ("set_vars", "use set")):
        if key in fields:
            findings.error("retired_task_key", f"{where}: {key!r} is retired, {hint}", (*path, key), step=step)
    task_input = fields.get("input")
    if task_input is None and isinstance(fields.get("args"), dict):
        findings.warn("deprecated_args", f"{where}: use input instead of args", (*path, "args"), step=step)
        task_input = fields["args"]
    if kind == "playbook" and "payload" in fields:
        findings.warn("deprecated_payload", f"{where}: use input instead of payload", (*path, "payload"), step=step)
    for key, value in (("input", task_input), ("set", fields.get("set"))):
        if value is not None and not isinstance(value, dict):
            findings.error(f"{key}_shape", f"{where}: {key} must be a mapping", (*path, key), step=step)
    spec = fields.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    rules, unmatched = read_policy(where, policy, (*path, "spec", "policy"), findings, step)
    if "retry" in fields:
        message = f"{where}: tool-level retry is not supported by this release, use spec.policy.rules"
        findings.error("unsupported", message, (*path, "retry"), step=step)
    timeout, values = fields.get("timeout", fields.get("timeout_seconds")), fields.get("set")
    return Task(
        label=label,
        kind=kind,
        config=_own_config(fields),
        input={**step_input, **(task_input if isinstance(task_input, dict) else {})},
        set=values if isinstance(values, dict) else {},
        rules=rules,
        fails_unmatched=unmatched,
        timeout=timeout,
        place=path,
    )


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


def _read_kind(where: str, value: object, place: Path, *, findings: Findings, kinds: frozenset[str], step: str) -> str:
    kind = str(value).lower()
    if kind not in LANGUAGE_KINDS and kind not in kinds:
        hint = findings.suggestion(kind, LANGUAGE_KINDS | kinds)
        findings.error("unknown_kind", f"{where}: unknown tool kind {value!r}{hint}", place, step=step)
    elif kind not in kinds:
        message = f"{where}: tool kind {kind!r} is not available in this installation; running it fails"
        findings.warn("unsupported_kind", message, place, step=step)
    return kind


def _hoist(where: str, entry: Mapping[str, object], path: Path, findings: Findings, step: str) -> dict[str, object]:
    """Tool fields that were written below `spec` belong to the tool."""
    fields = dict(entry)
    spec = entry.get("spec")
    if not isinstance(spec, dict):
        return fields
    for key in spec:
        if key not in SPEC_KEYS_KEPT:
            message = f"{where}: {key!r} belongs to the tool, not to spec"
            findings.warn("tool_field_in_spec", message, (*path, "spec", key), step=step)
            fields.setdefault(key, spec[key])
    if "timeout" in spec and not isinstance(spec["timeout"], dict):
        fields.setdefault("timeout", spec["timeout"])
    return fields
