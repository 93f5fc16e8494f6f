"""What an execution was bound to when it began: its scripts and the versions of the playbooks that it starts.

Later registrations and later edits do not change a run, a retry of it, or what it starts next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.execution.state import ExecutionState, Script
from noetl.core.playbook.compiled import CompiledStep
from noetl.core.playbook.needs import Needs


def pinned(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The fold of an execution's first event."""
    names = meta.get("script_names", {})
    return {
        "scripts": {
            uri: Script(reference, None if names.get(uri) is None else tuple(names[uri]))
            for uri, reference in meta.get("scripts", {}).items()
        },
        "playbooks": {path: facts["version"] for path, facts in meta.get("playbooks", {}).items()},
        "warnings": tuple(meta.get("warnings", ())),
    }


def started(state: ExecutionState, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The fold of a child's start: a path that was computed is bound to the version of its first child."""
    catalog, path = meta.get("catalog"), meta["path"]
    if catalog is None or path in state.playbooks:
        return {}
    return {"playbooks": {**state.playbooks, path: catalog["version"]}}


def scripts_of(state: ExecutionState, step: CompiledStep) -> dict[str, Mapping[str, object]]:
    """The pinned scripts that the tasks of a step run, by reference."""
    return {uri: state.scripts[uri].reference for uri in step.scripts if uri is not None and uri in state.scripts}


def with_scripts(state: ExecutionState, step: CompiledStep, needs: Needs) -> Needs:
    """What the tasks of a step need, their scripts included; a script that nobody has seen may read everything."""
    for uri in step.scripts:
        script = state.scripts.get(uri or "")
        known = script.names if script is not None else None
        needs |= Needs(names=frozenset(known or ()), everything=known is None)
    return needs
