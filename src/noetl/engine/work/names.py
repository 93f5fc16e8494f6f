"""The names that worker-side templates see, built from what a command carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.errors import PayloadCorrupt
from noetl.core.expression import Scope, plain, view_of
from noetl.core.reference import MEDIA_PIPELINE
from noetl.engine.payloads import Payloads
from noetl.ports.session import CommandMessage


def pipeline_result(order: list[str], results: Mapping[str, object]) -> dict[str, object]:
    """The result of a list pipeline: labels, the same map under `results`, and the merged keys of mappings."""
    merged: dict[str, object] = {}
    for label in order:
        value = results[label]
        if isinstance(value, dict):
            merged.update({key: item for key, item in value.items() if key not in results})
    last = results[order[-1]] if order else None
    if order and not isinstance(last, dict):
        merged["data"] = last
    return {**merged, **results, "results": dict(results), "_prev": last}


def stored_value(document: object, media_type: object) -> object:
    """What was kept, as the step's result."""
    if media_type != MEDIA_PIPELINE:
        return document
    assert isinstance(document, dict)
    return pipeline_result(document["order"], document["results"])


def failed_view(error: Mapping[str, object] | None, partial: object) -> dict[str, object]:
    base = dict(partial) if isinstance(partial, dict) else {}
    return {**base, "status": "error", "error": error}


class NameBuilder:
    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    async def build(self, message: CommandMessage, *, spec: Mapping[str, object] | None) -> dict[str, object]:
        """Every name of the command's scope.  References are opened here, where the data is used."""
        body: Any = message.body
        workload = {name: await self._entry(message, entry) for name, entry in body["workload"].items()}
        variables = {name: await self._entry(message, entry) for name, entry in body["ctx"].items()}
        steps = {name: await self._step(message, envelope) for name, envelope in body["steps"].items()}
        identity = str(message.execution_id)
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
            "parent_execution_id": body.get("parent_execution_id"),
            "env": {},
            "iter": {},
        }
        if spec is not None:
            names["spec"] = spec
        parents = body.get("parents", ())
        if parents and parents[-1] in steps:
            names["result"] = names["response"] = steps[parents[-1]]
        return names

    async def _entry(self, message: CommandMessage, entry: Mapping[str, Any]) -> object:
        if "ref" not in entry:
            return entry.get("v")
        value = await self._open(message, entry["ref"])
        for key in entry["path"]:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise PayloadCorrupt(f"{entry['ref']['uri']} has no {key!r}") from error
        return value

    async def _step(self, message: CommandMessage, envelope: Mapping[str, Any]) -> object:
        reference = envelope["ref"]
        value = await self._open(message, reference) if reference is not None else None
        if envelope["status"] == "error":
            return view_of(failed_view(envelope.get("error"), value))
        return view_of(value, extras=reference_extras(reference))

    async def _open(self, message: CommandMessage, reference: Mapping[str, Any]) -> Any:
        document = await self._payloads.read_json(
            reference, tenant_id=message.tenant_id, organization_id=message.organization_id
        )
        return stored_value(document, reference.get("media_type"))


def reference_extras(reference: Mapping[str, Any] | None) -> dict[str, object] | None:
    """`_ref` and its companions exist only for a result that is stored outside the database."""
    if reference is None or reference.get("store") == "db":
        return None
    size = reference["bytes"]
    tier = "kv" if size < 1_048_576 else "disk"
    return {"_ref": dict(reference), "_store": tier, "_size_bytes": size, "_preview": None}


def plain_context(names: Mapping[str, object]) -> dict[str, object]:
    """The whole context as plain data, for code that asks for `context`."""
    return {name: plain(value) for name, value in names.items()}
