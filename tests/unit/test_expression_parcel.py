"""Names that travel to another process are the same names there."""

from __future__ import annotations

import json

import pytest

from noetl.core.expression import EventName, OutputView, Scope, compile_template, pack, render, unpack, view_of

NAMES = {
    "plain": {"a": [1, None, "x"]},
    "mapping": view_of({"rows": [1, 2], "k": "v"}, extras={"_ref": {"sha256": "0"}}),
    "rows": view_of([1, 2, 3]),
    "number": view_of(7),
    "web": view_of({"status_code": 200, "body": {"page": 2}}, http=True),
    "output": OutputView(status="error", data={"n": 1}, error={"kind": "python"}),
    "ctx": Scope({"own": 1}, {"fallback": 2}, {"step": view_of({"x": 3})}),
    "steps": {"a b": view_of({"n": 4})},
    "event": {"name": EventName("call.done"), "payload": view_of({"rows": [1, 2]})},
}


@pytest.mark.parametrize(
    "source",
    [
        "{{ plain.a[2] }}",
        "{{ mapping.data.rows | length }}",
        "{{ mapping._ref.sha256 }}",
        "{{ mapping.status }}",
        "{{ mapping }}",
        "{{ rows.data[1] }}",
        "{{ number + 1 }}",
        "{{ number.result }}",
        "{{ web.page }}",
        "{{ output.status }}{{ output.n }}{{ output.error.kind }}",
        "{{ ctx.own }}{{ ctx.fallback }}{{ ctx.step.data.x }}",
        "{{ ctx }}",
        "{{ steps['a b'].data.n }}",
        "{{ event.name == 'step.done' }}{{ event.name == 'call.error' }}{{ event.payload.data.rows | length }}",
        "{{ event }}",
    ],
)
def test_a_template_sees_the_same_after_the_journey(source: str) -> None:
    arrived = unpack(json.loads(json.dumps(pack(NAMES))))
    template = compile_template(source)
    assert render(template, arrived) == render(template, NAMES)
