"""The names that worker-side templates see, built from what a command carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.errors import PayloadCorrupt
from noetl.core.expression import Scope, plain, view_of
from noetl.engine.payloads import Payloads
from noetl.engine.results import failed_view, read_result, result_extras
from noetl.ports.session import CommandMessage


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
        extras = result_extras(reference, value)
        if envelope["status"] == "error":
            value = failed_view(envelope.get("error"), value)
        return view_of(value, extras=extras)

    async def _open(self, message: CommandMessage, reference: Mapping[str, Any]) -> Any:
        return await read_result(
            self._payloads, reference, tenant_id=message.tenant_id, organization_id=message.organization_id
        )


def plain_context(names: Mapping[str, object]) -> dict[str, object]:
    """The whole context as plain data, for code that asks for `context`."""
    return {name: plain(value) for name, value in names.items()}
