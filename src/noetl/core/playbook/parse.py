"""Document → model: the root, the executor and the steps.  Every finding names the step and the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.playbook.document import Document, Findings, Path, read_document
from noetl.core.playbook.loops import check_loop_mode, read_loop
from noetl.core.playbook.model import Playbook, Step
from noetl.core.playbook.routing import read_next
from noetl.core.playbook.tasks import read_tasks
from noetl.core.playbook.timeouts import execution_timeout, step_timeout

API_VERSIONS = ("noetl.io/v2", "noetl.io/v10")
ROOT_KEYS = (
    "apiVersion",
    "kind",
    "metadata",
    "workload",
    "keychain",
    "executor",
    "workbook",
    "workflow",
    "limits",
)
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
# Parts of the language that this release does not run.  They are refused, never ignored.
UNSUPPORTED_ROOT = ("keychain", "workbook", "limits")
# A step's name is part of command ids and transition keys, which are index entries of the ledger.
STEP_NAME_CHARS_MAX = 200
STEPS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ParsedPlaybook:
    playbook: Playbook
    warnings: tuple[Problem, ...]
    document: Document


def parse_playbook(text: str, *, file: str, kinds: frozenset[str]) -> ParsedPlaybook:
    """Parse or raise PlaybookInvalid with every error found.  `kinds` are the tools that can run here."""
    document = read_document(text, file=file)
    findings = Findings(document)
    for path in document.duplicate_keys:
        findings.warn("duplicate_key", f"the key {path[-1]!r} is given twice: the last one counts", path)
    playbook = _read_root(document.value, findings, kinds)
    if findings.errors or playbook is None:
        raise PlaybookInvalid(findings.errors)
    return ParsedPlaybook(playbook, tuple(findings.warnings), document)


def _read_root(root: object, findings: Findings, kinds: frozenset[str]) -> Playbook | None:
    if not isinstance(root, dict):
        findings.error("not_a_playbook", "a playbook is a mapping with apiVersion, kind, metadata and workflow", ())
        return None
    _check_root(root, findings)
    metadata = root.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name or not name.isprintable():
        message = "metadata.name is required and must be text in one line"
        findings.error("metadata_name", message, ("metadata", "name"))
        name = "unnamed"
    path = metadata.get("path") if isinstance(metadata, dict) else None
    if path is not None and (not isinstance(path, str) or not path.isprintable()):
        findings.error("metadata_path", "metadata.path must be text in one line", ("metadata", "path"))
    workload = root.get("workload") or {}
    if not isinstance(workload, dict):
        findings.error("workload_shape", "workload must be a mapping", ("workload",))
        workload = {}
    steps = _read_steps(root.get("workflow"), findings, kinds)
    spec, timeout = _read_executor(root.get("executor"), findings, [step.name for step in steps], kinds)
    if not steps:
        return None
    _check_targets(steps, findings)
    check_loop_mode(spec, steps, findings)
    entry = spec.get("entry_step") or ("start" if any(s.name == "start" for s in steps) else steps[0].name)
    final_step = spec.get("final_step")
    return Playbook(
        name=name,
        path=str(path or name),
        metadata=metadata if isinstance(metadata, dict) else {},
        workload=workload,
        steps=steps,
        entry=str(entry),
        final_step=str(final_step) if final_step else None,
        no_next_is_error=spec.get("no_next_is_error") is True,
        strict_templates=spec.get("strict_templates") is True,
        task_timeout_seconds=timeout,
        timeout_seconds=execution_timeout(spec, findings),
        spec=root["spec"] if isinstance(root.get("spec"), dict) else None,
    )


def _check_root(root: Mapping[str, object], findings: Findings) -> None:
    version, kind = root.get("apiVersion"), root.get("kind")
    if version not in API_VERSIONS:
        findings.error("api_version", f"apiVersion must be noetl.io/v2, not {version!r}", ("apiVersion",))
    if kind != "Playbook":
        findings.error("document_kind", f"kind must be Playbook, not {kind!r}", ("kind",))
    if "vars" in root:
        findings.error("root_vars", "root key 'vars' is retired: use workload or ctx", ("vars",))
    for key in UNSUPPORTED_ROOT:
        if root.get(key):
            findings.error("unsupported", f"root key {key!r} is not supported by this release", (key,))
    for key in root:
        if key in ("spec", "tracing"):
            findings.warn("deprecated_root_key", f"root key {key!r} is deprecated", (key,))
        elif key not in ROOT_KEYS and key != "vars":
            hint = findings.suggestion(key, ROOT_KEYS)
            findings.warn("unknown_root_key", f"unknown root key {key!r} is ignored{hint}", (key,))


def _read_executor(
    executor: object, findings: Findings, steps: list[str], kinds: frozenset[str]
) -> tuple[Mapping[str, object], float | None]:
    if executor is None:
        return {}, None
    spec = executor.get("spec") if isinstance(executor, dict) else None
    if not isinstance(executor, dict) or not isinstance(spec if spec is not None else {}, dict):
        findings.error("executor_shape", "executor and executor.spec must be mappings", ("executor",))
        return {}, None
    spec = spec or {}
    for key in ("entry_step", "final_step"):
        target = spec.get(key)
        if target is not None and target not in steps:
            hint = findings.suggestion(str(target), steps)
            findings.error(
                "unknown_step",
                f"executor.spec.{key} names no step: {target!r}{hint}",
                ("executor", "spec", key),
            )
    for key in ("no_next_is_error", "strict_templates"):
        if not isinstance(spec.get(key, False), bool):
            message = f"executor.spec.{key} must be true or false"
            findings.error("executor_shape", message, ("executor", "spec", key))
    _check_requires(executor.get("requires"), findings, kinds)
    return spec, _default_timeout(spec, findings)


def _default_timeout(spec: Mapping[str, object], findings: Findings) -> float | None:
    policy = spec.get("policy")
    defaults = policy.get("defaults") if isinstance(policy, dict) else None
    timeout = defaults.get("timeout_s") if isinstance(defaults, dict) else None
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        message = "executor.spec.policy.defaults.timeout_s must be a number above 0"
        findings.error("timeout", message, ("executor", "spec", "policy", "defaults", "timeout_s"))
        return None
    return float(timeout) if timeout is not None else None


def _check_requires(requires: object, findings: Findings, kinds: frozenset[str]) -> None:
    """A tool that the playbook cannot do without is missed at once, not when its step runs."""
    place: Path = ("executor", "requires")
    if requires is None:
        return
    tools = requires.get("tools", []) if isinstance(requires, dict) else None
    if not isinstance(requires, dict) or not isinstance(tools, list):
        findings.error("executor_shape", "executor.requires.tools must be a list", place)
        return
    for number, kind in enumerate(tools):
        if str(kind).lower() not in kinds:
            message = f"executor.requires.tools: tool kind {kind!r} is not available in this installation"
            findings.error("tool_missing", message, (*place, "tools", number))
    if requires.get("features"):
        message = "executor.requires.features: no features are known to this release"
        findings.warn("unknown_feature", message, (*place, "features"))


def _read_steps(workflow: object, findings: Findings, kinds: frozenset[str]) -> tuple[Step, ...]:
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
        steps.append(_read_step(name, entry, path, findings, kinds))
    return tuple(steps)


def _read_step(name: str, entry: Mapping[str, object], path: Path, findings: Findings, kinds: frozenset[str]) -> Step:
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
        kinds=kinds,
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


def _check_targets(steps: tuple[Step, ...], findings: Findings) -> None:
    names = {step.name for step in steps}
    for step in steps:
        for arc in step.next.arcs if step.next else ():
            if arc.step not in names and arc.step != "end":
                hint = findings.suggestion(arc.step, names)
                findings.error(
                    "unknown_step",
                    f"step {step.name!r}: an arc leads to {arc.step!r}, which does not exist{hint}",
                    (*arc.place, "step"),
                    step=step.name,
                )
