"""Document → model: the root, the executor and the steps.  Every finding names the step and the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.playbook.document import Document, Findings, read_document
from noetl.core.playbook.keychain.reading import read_keychain
from noetl.core.playbook.limits.reading import check_limits, read_limits
from noetl.core.playbook.model import Playbook, Step
from noetl.core.playbook.reading.executor import read_executor
from noetl.core.playbook.reading.loops import fanned_out
from noetl.core.playbook.reading.steps import read_steps
from noetl.core.playbook.reading.tasks import Tools
from noetl.core.playbook.reading.timeouts import execution_timeout
from noetl.core.playbook.reading.workbook import read_workbook

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
    limits = read_limits(root.get("limits"), findings)
    tools = Tools(kinds=kinds, workbook=read_workbook(root.get("workbook"), findings, kinds), limits=limits)
    keychain = read_keychain(root.get("keychain"), findings)
    steps = read_steps(root.get("workflow"), findings, tools)
    spec, timeout = read_executor(root.get("executor"), findings, [step.name for step in steps], kinds)
    if not steps:
        return None
    _check_targets(steps, findings)
    check_limits(limits, steps, findings)
    steps = fanned_out(spec, steps)
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
        keychain=keychain,
        limits=limits,
    )


def _check_root(root: Mapping[str, object], findings: Findings) -> None:
    version, kind = root.get("apiVersion"), root.get("kind")
    if version not in API_VERSIONS:
        findings.error("api_version", f"apiVersion must be noetl.io/v2, not {version!r}", ("apiVersion",))
    if kind != "Playbook":
        findings.error("document_kind", f"kind must be Playbook, not {kind!r}", ("kind",))
    if "vars" in root:
        findings.error("root_vars", "root key 'vars' is retired: use workload or ctx", ("vars",))
    for key in root:
        if key in ("spec", "tracing"):
            findings.warn("deprecated_root_key", f"root key {key!r} is deprecated", (key,))
        elif key not in ROOT_KEYS and key != "vars":
            hint = findings.suggestion(key, ROOT_KEYS)
            findings.warn("unknown_root_key", f"unknown root key {key!r} is ignored{hint}", (key,))


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
