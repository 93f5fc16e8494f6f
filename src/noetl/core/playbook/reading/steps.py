"""`workflow` → steps.  Every finding names the step and the key."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import ARCS_MAX, STEP_NAME_CHARS_MAX, STEPS_MAX, TASKS_MAX
from noetl.core.playbook.document import Findings, Path, Spot
from noetl.core.playbook.model import Step
from noetl.core.playbook.reading.admission import read_admit, read_guard
from noetl.core.playbook.reading.loops import read_loop
from noetl.core.playbook.reading.routing import read_next
from noetl.core.playbook.reading.tasks import Tools, read_tasks
from noetl.core.playbook.reading.timeouts import step_timeout
from noetl.core.playbook.storage.reading import step_output

STEP_KEYS = ("step", "desc", "tool", "next", "loop", "set", "input", "output", "output_select", "spec", "when", "args")
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
            message = (
                f"step {name[:40]!r}: a step name is one line of at most {STEP_NAME_CHARS_MAX} characters, "
                f"this one has {len(name):,}"
            )
            findings.error("step_name", message, (*path, "step"), step=name[:40])
            continue
        if name in names:
            findings.error("duplicate_step", f"step {name!r} is declared twice", (*path, "step"), step=name)
        names.add(name)
        steps.append(_read_step(name, entry, path, findings, tools))
    _check_totals(steps, findings)
    return tuple(steps)


def _check_totals(steps: list[Step], findings: Findings) -> None:
    arcs = sum(len(step.next.arcs) for step in steps if step.next is not None)
    if arcs > ARCS_MAX:
        message = f"workflow has {arcs:,} arcs, the limit is {ARCS_MAX:,}: let steps in between lead on"
        findings.error("too_many_arcs", message, ("workflow",))
    tasks = sum(len(step.tasks) for step in steps)
    if tasks > TASKS_MAX:
        message = f"workflow has {tasks:,} tasks, the limit is {TASKS_MAX:,}: move some to a playbook of their own"
        findings.error("too_many_tasks", message, ("workflow",))


def _read_step(name: str, entry: Mapping[str, object], path: Path, findings: Findings, tools: Tools) -> Step:
    spot = Spot(findings, f"step {name!r}", path, name)
    _check_step_keys(entry, spot)
    step_input = entry.get("input", entry.get("args"))
    if step_input is not None and not isinstance(step_input, dict):
        spot.error("input_shape", "input must be a mapping", "input")
        step_input = None
    values = entry.get("set") or {}
    if not isinstance(values, dict):
        spot.error("set_shape", "set must be a mapping", "set")
        values = {}
    tool = entry.get("tool")
    if tool is None and "next" not in entry:
        spot.error("tool_required", "needs `tool` or `next`")
    elif tool is None:
        spot.warn("implicit_noop", "has no tool and does nothing")
    tasks = read_tasks(name, tool, step_input=step_input or {}, path=(*path, "tool"), findings=findings, tools=tools)
    return Step(
        name=name,
        tasks=tasks,
        is_pipeline=isinstance(tool, list),
        next=read_next(entry, spot),
        set=values,
        loop=read_loop(name, entry, path, findings, tasks),
        timeout_seconds=step_timeout(name, entry.get("spec"), path, findings),
        admit=read_admit(name, entry.get("spec"), path, findings),
        when=read_guard(entry, spot),
        output=step_output(entry, spot),
        place=path,
    )


def _check_step_keys(entry: Mapping[str, object], spot: Spot) -> None:
    for key, hint in RETIRED_STEP_KEYS.items():
        if key in entry:
            spot.error("retired_step_key", f"key {key!r} is retired, {hint}", key)
    if "args" in entry:
        spot.warn("deprecated_args", "use input instead of args", "args")
    for key in entry:
        if key not in STEP_KEYS and key not in RETIRED_STEP_KEYS:
            spot.warn("unknown_step_key", f"unknown key {key!r} is ignored{spot.near(key, STEP_KEYS)}", key)
