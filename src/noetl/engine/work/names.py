"""The names that worker-side templates see, built from what a command carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from noetl.core.execution.values import event_view, iteration, skipped_names
from noetl.core.expression import Scope, View, bare, plain
from noetl.core.expression.views.pipelines import with_parts
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep
from noetl.core.playbook.model import LoopMode
from noetl.core.playbook.needs import FACTS
from noetl.core.results.parts import rooted
from noetl.engine.payloads import Payloads
from noetl.engine.stored.extras import Place
from noetl.engine.stored.outcome import output_of
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from noetl.ports.session import CommandMessage

# Names that exist in every pipeline (dsl §7.3).
PIPELINE_NAMES = FACTS | {
    *("workload", "ctx", "steps", "iter", "step", "results", "_prev", "_task", "_attempt", "input"),
    *("output", "outcome", "error"),
}


# Names that exist in every row of a loop.
LOOP_NAMES = frozenset(("loop", "frame", "_index", "loop_index", "_total"))


class NameBuilder:
    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    async def build(self, message: CommandMessage, *, spec: Mapping[str, object] | None) -> dict[str, object]:
        """Every name of the command's scope.  References are opened when a template looks at what is behind them."""
        body: Any = message.body
        reader = Reader(self._payloads, tenant_id=message.tenant_id, organization_id=message.organization_id)
        workload = {name: reader.entry(entry) for name, entry in body["workload"].items()}
        variables = {name: reader.entry(entry) for name, entry in body["ctx"].items()}
        steps = {name: reader.step(envelope) for name, envelope in body["steps"].items()}
        identity, catalog = str(message.execution_id), body.get("catalog") or {}
        names: dict[str, object] = {
            **workload,
            **steps,
            **variables,
            "workload": workload,
            "ctx": Scope(variables, workload, steps),
            "steps": steps,
            "execution_id": identity,
            "job": {"uuid": identity, "id": identity, "execution_id": identity},
            "path": body["path"],
            "catalog_id": catalog.get("id"),
            "version": catalog.get("version"),
            "parent_execution_id": body.get("parent_execution_id"),
            "env": body.get("env", {}),
            "iter": iteration(body.get("iter")),
        }
        if spec is not None:
            names["spec"] = spec
        if "args" in body:
            names["args"] = {name: reader.entry(entry) for name, entry in body["args"].items()}
        about = body.get("about")
        if about is not None:
            names |= _requested_by(about, steps)
        return names


def bound_names(body: Mapping[str, Any], playbook: CompiledPlaybook) -> frozenset[str]:
    """The reserved names that exist in this command's pipelines: nothing that a playbook makes hides them."""
    own = _requested_by(body["about"], body["steps"]).keys() if "about" in body else ()
    given = (("spec", playbook.playbook.spec is not None), ("args", "args" in body))
    return PIPELINE_NAMES.union(own, (name for name, is_there in given if is_there))


def _requested_by(about: Mapping[str, Any], steps: Mapping[str, object]) -> dict[str, object]:
    """The deprecated names of what the step before gave; one that was skipped gave nothing."""
    if about.get("skipped") or about["step"] not in steps:
        return {}
    return dict.fromkeys(("result", "response"), steps[about["step"]])


def outcome_names(
    body: Mapping[str, Any], names: Mapping[str, Any], playbook: CompiledPlaybook, *, now: str
) -> dict[str, object]:
    """`output`, `event` and their companions, for an expression of the router: about the step that has ended, or about
    the one that requested a step which has yet to begin.  Nothing where there is none."""
    about = body.get("about")
    if about is None:
        return {}
    step, is_skipped = about["step"], about.get("skipped") is True
    envelope, view = body["steps"].get(step), names["steps"].get(step)
    is_loop = playbook.steps[step].loop is not None and not is_skipped
    if is_skipped or envelope is None:
        event = event_view(step, has_failed=False, is_loop=is_loop, now=now)
        return {**(skipped_names() if is_skipped else {}), "event": event}
    output = output_of(envelope, view)
    error = output["error"]
    event = event_view(step, has_failed=envelope["status"] == "error", is_loop=is_loop, now=now)
    event["payload"] = view
    found = {"output": output, "outcome": output, "result": view, "response": view, "error": error, "event": event}
    loop = playbook.steps[step].loop
    if loop is not None and loop.loop.mode is LoopMode.FANOUT:
        found["fanin"] = Place(lambda: view, ["fanin"])
    return found


async def plain_context(names: Mapping[str, object]) -> dict[str, object]:
    """The whole context as plain data, for code that asks for `context`."""
    return await settled(lambda: {name: plain(value) for name, value in names.items()})


def variables_of(names: Mapping[str, object]) -> dict[str, object]:
    """The values of ctx by key; one that is not here yet is a view."""
    context = names["ctx"]
    return dict(context._own) if isinstance(context, Scope) else dict(cast("Mapping[str, object]", context))


async def with_open(variables: Mapping[str, object], keys: Iterable[str]) -> dict[str, object]:
    """The values of ctx with some of them at hand: who changes a part of a value must have the rest."""
    found = dict(variables)
    for key in keys:
        value = found.get(key)
        if isinstance(value, View):
            found[key] = await settled(partial(_opened, value))
    return found


def _opened(value: View) -> object:
    """The data behind a view; tables stay where they are."""
    return rooted(with_parts(value)) if value._holds_parts() else bare(value)


def partly_written(step: CompiledStep) -> set[str]:
    """The keys of ctx of which the tasks of a step write parts."""
    sets = (one for task in step.tasks for one in (*task.sets, *(one for rule in task.rules for one in rule.sets)))
    return {one.path[0] for one in sets if one.scope == "ctx" and len(one.path) > 1}
