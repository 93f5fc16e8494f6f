"""`workflow` → steps.  Every finding names the step and the key."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Step
from noetl.core.playbook.reading.loops import read_loop
from noetl.core.playbook.reading.routing import read_next
from noetl.core.playbook.reading.tasks import Tools, read_tasks
from noetl.core.playbook.reading.timeouts import step_timeout

STEP_KEYS = ("step", "desc", "tool", "next", "loop", "set", "input", "output", "spec", "when", "args")
RETIRED_STEP_KEYS = {
    "case": "use next.arcs with `when`",
    "type": "use tool.kind",
    "vars": "use set",
    "sink": "add a task that writes",
    "retry": "use the task's spec.policy.rules",
    "result": "use set or output",
    "outcome": "use set or output",
    "set_vars": "use set",
}
# A step's name is part of command ids and transition keys, which are index entries of the ledger.
STEP_NAME_CHARS_MAX = 200
STEPS_MAX = 1_000


def read_steps(workflow: object, findings: Findings, tools: Tools) -> tuple[Step, ...]:
    if not isinstance(workflow, list) or not workflow:
        findings.error("workflow_empty", "workflow must be a list with at least one step", ("workflow",))
        return ()
    if len(workflow) > STEPS_MAX:
        message = f"workflow has {len(workflow):,} steps, the limit is {STEPS_MAX:,}"
        findings.error("too_many_steps", message, ("workflow",))
        return ()
    steps: list[Step] = []
    names: set[str] = set()
    for number, entry in enumerate(workflow):
        path: Path = ("workflow", number)
        name = entry.get("step") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not name:
            findings.error("step_name", "a step is a mapping with a non-empty `step` name", path)
            continue
        if len(name) > STEP_NAME_CHARS_MAX or not name.isprintable():
            message = f"step {name[:40]!r}: a step name is one line of at most {STEP_NAME_CHARS_MAX} characters"
            findings.error("step_name", message, (*path, "step"), step=name[:40])
            continue
        if name in names:
            findings.error("duplicate_step", f"step {name!r} is declared twice", (*path, "step"), step=name)
        names.add(name)
        steps.append(_read_step(name, entry, path, findings, tools))
    return tuple(steps)


def _read_step(name: str, entry: Mapping[str, object], path: Path, findings: Findings, tools: Tools) -> Step:
    _check_step_keys(name, entry, path, findings)
    step_input = entry.get("input", entry.get("args"))
    if step_input is not None and not isinstance(step_input, dict):
        findings.error("input_shape", f"step {name!r}: input must be a mapping", (*path, "input"), step=name)
        step_input = None
    values = entry.get("set") or {}
    if not isinstance(values, dict):
        findings.error("set_shape", f"step {name!r}: set must be a mapping", (*path, "set"), step=name)
        values = {}
    if entry.get("tool") is None:
        if "next" not in entry:
            findings.error("tool_required", f"step {name!r} needs `tool` or `next`", path, step=name)
        else:
            findings.warn("implicit_noop", f"step {name!r} has no tool: it does nothing", path, step=name)
    tasks = read_tasks(
        name,
        entry.get("tool"),
        step_input=step_input or {},
        path=(*path, "tool"),
        findings=findings,
        tools=tools,
    )
    return Step(
        name=name,
        tasks=tasks,
        is_pipeline=isinstance(entry.get("tool"), list),
        next=read_next(name, entry, path, findings),
        set=values,
        loop=read_loop(name, entry, path, findings, tasks),
        timeout_seconds=step_timeout(name, entry.get("spec"), path, findings),
        place=path,
    )


def _check_step_keys(name: str, entry: Mapping[str, object], path: Path, findings: Findings) -> None:
    for key, hint in RETIRED_STEP_KEYS.items():
        if key in entry:
            findings.error(
                "retired_step_key", f"step {name!r}: key {key!r} is retired, {hint}", (*path, key), step=name
            )
    for key in ("when",):
        if key in entry:
            findings.error(
                "unsupported",
                f"step {name!r}: {key!r} is not supported by this release",
                (*path, key),
                step=name,
            )
    spec = entry.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    if isinstance(policy, dict) and "admit" in policy:
        findings.error(
            "unsupported",
            f"step {name!r}: spec.policy.admit is not supported by this release",
            (*path, "spec", "policy", "admit"),
            step=name,
        )
    if "args" in entry:
        findings.warn("deprecated_args", f"step {name!r}: use input instead of args", (*path, "args"), step=name)
    for key in entry:
        if key not in STEP_KEYS and key not in RETIRED_STEP_KEYS:
            hint = findings.suggestion(key, STEP_KEYS)
            findings.warn(
                "unknown_step_key",
                f"step {name!r}: unknown key {key!r} is ignored{hint}",
                (*path, key),
                step=name,
            )
