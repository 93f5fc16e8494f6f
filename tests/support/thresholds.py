"""Where values stop being inline: all at once at nothing, or beyond what any test has.  And random playbooks whose
values must not care."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import yaml
from hypothesis import strategies as st

from noetl.core import limits
from tests.support.playbooks import BOOM, graph

HUGE = 10**12
# What an event can hold is the most that atoms can have: the values of these tests are smaller.
INFINITE: Mapping[str, int] = {
    "PAYLOAD_INLINE_BYTES_MAX": HUGE,
    "CONTEXT_ENTRY_BYTES_MAX": HUGE,
    "CONTEXT_INLINE_BYTES_MAX": HUGE,
    "CONTEXT_COUNTER_BYTES_MAX": HUGE,
    "ATOM_BYTES_MAX": 6_000,
    "ATOMS_BYTES_MAX": 6_000,
    "RESULT_INLINE_BYTES_MAX": HUGE,
    "INDEX_PART_BYTES": HUGE,
    "INDEX_READ_BYTES_MAX": HUGE,
    "STORED_HELD_BYTES": HUGE,
    "COLLECTION_CHUNK_ROWS": HUGE,
    "COLLECTION_CHUNK_BYTES": HUGE,
    "COLLECTION_CARRIED_BYTES_MAX": HUGE,
}
ZERO: Mapping[str, int] = dict.fromkeys(INFINITE, 0)
USUAL: Mapping[str, int] = {name: getattr(limits, name) for name in INFINITE}


@contextmanager
def thresholds(values: Mapping[str, int]) -> Iterator[None]:
    """Every module reads these limits when it needs them, so this is the one place to change them."""
    changes: dict[str, Any] = dict(values)
    with mock.patch.multiple(limits, **changes):
        yield


# --- random playbooks ------------------------------------------------------------------------------------

NUMBERS = st.integers(-3, 12)
TEXTS = st.one_of(st.sampled_from(["", "no", "text", "é€", '"quoted"\\']), st.integers(1, 300).map(lambda n: "x" * n))
ROWS = st.lists(
    st.fixed_dictionaries({"n": NUMBERS, "t": TEXTS}, optional={"u": st.lists(NUMBERS, max_size=3)}), max_size=4
)
VALUES = st.fixed_dictionaries(
    {"n": NUMBERS, "rows": ROWS},
    optional={"a": st.one_of(st.none(), st.booleans()), "t": TEXTS, "z": st.fixed_dictionaries({"deep": ROWS})},
)
_PATHS = (
    *("{r}", "{r}.n", "{r}.rows", "{r}.rows[0]", "{r}.rows[-1].n", "{r}.rows[1].t", "{r}.z.deep", "{r}.z.deep[0].n"),
    *("{r}.missing", "{r}.data", "{r}.data.rows", "{r}.status", "{r}.results", "{r}.results[0]", "{r}.stats.total"),
    *("{r}.results[-1].n", "{r}.a", "{r}.t", "{r}.first.n", "{r}.first.rows", "{r}.results.first.n", "{r}._prev"),
    *("{r}.error.kind", "{r}.error", "{r}.count"),
)
_FORMS = (
    *(
        "{p}",
        "{p}",
        "{p}",
        "{p} | default('none')",
        "{p} | length",
        "{p} | tojson | length",
        "[{p}, {q}]",
        "{{'a': {p}, 'b': 1}}",
    ),
    *("{p} == {q}", "{p} if {q} else 7", "{p} is defined", "{p} or {q}", "({r}.rows | default([])) + [{q}]"),
    *("{r}.rows | map(attribute='n') | list", "{p} is mapping", "{q} in ({r}.rows | default([]))", "{r}.rows[:2]"),
    *(
        "{p} | string | length",
        "({p} | default([], true)) | list | length",
        "{r}.rows | selectattr('n', 'gt', 2) | list",
    ),
)


@st.composite
def expressions(draw: st.DrawFn, roots: tuple[str, ...]) -> str:
    """The inside of a template."""
    first, second = draw(st.sampled_from(roots)), draw(st.sampled_from(roots))
    p, q = draw(st.sampled_from(_PATHS)).format(r=first), draw(st.sampled_from(_PATHS)).format(r=second)
    # The envelope as a whole says when the task ran.
    p, q = ("output.data" if path == "output" else path for path in (p, q))
    return draw(st.sampled_from(_FORMS)).format(p=p, q=q, r=first)


@st.composite
def templates(draw: st.DrawFn, roots: tuple[str, ...]) -> str:
    inside = draw(expressions(roots))
    plain = "{{{{ {} }}}}"
    # How long a text is does not depend on the order of keys, which an event does not keep.
    looping = "{{% for x in [{}] %}}{{{{ x | tojson | length }}}},{{% endfor %}}"
    return draw(st.sampled_from([*[plain] * 6, "a {{{{ ({}) | string | length }}}} b", looping])).format(inside)


def values(roots: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """What may stand in a `set` or in a field: a template, or templates inside something."""
    one = templates(roots)
    return st.one_of(
        one,
        one,
        st.fixed_dictionaries({"in": one, "n": NUMBERS}),
        st.lists(st.one_of(one, NUMBERS), min_size=1, max_size=2),
        st.fixed_dictionaries({"deep": st.fixed_dictionaries({"er": one})}),
        VALUES,
    )


KEYS = st.sampled_from(["k0", "k1", "ctx.k0.part", "k1.n", "ctx.k2.x.y", "k0.part.deeper"])


def sets(roots: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(KEYS, values(roots), max_size=3)


@st.composite
def arcs(draw: st.DrawFn, roots: tuple[str, ...], number: int, count: int) -> list[dict[str, Any]]:
    """To the next step if a guard holds, to the one after it otherwise; and on an error anywhere."""

    def named(step: int) -> str:
        return f"s{step}" if step < count else "end"

    guard = "{{ " + draw(expressions((*roots, "output"))) + " }}"
    found: list[dict[str, Any]] = [{"step": named(number + 1), "when": guard}]
    block = draw(sets((*roots, "output")))
    if block:
        found[0]["set"] = block
    if draw(st.integers(0, 4)):
        found.append({"step": named(number + draw(st.integers(1, 2)))})
    if draw(st.integers(0, 4)):
        found.append({"step": "end", "when": "{{ output.status == 'error' and error.kind }}"})
    return found


@st.composite
def tools(draw: st.DrawFn, roots: tuple[str, ...]) -> Any:
    kind = draw(st.sampled_from(["plain", "plain", "value", "value", "python", "pipeline", "pipeline", "failing"]))
    if kind == "python":
        code = "result = {'given': given, 'n': len(str(given)), 'rows': [given, {'n': 3, 't': 't' * 500}]}"
        return {"kind": "python", "input": {"given": draw(values(roots))}, "code": code}
    if kind == "failing":
        return {"kind": "noop", "result": "{{ 1 // (workload.zero) }}"}
    if kind == "plain":
        return {"kind": "noop", "result": draw(VALUES)}
    if kind == "value":
        return {"kind": "noop", "result": draw(values(roots))}
    own = (*roots, "first", "output", "_prev", "results")
    second: dict[str, Any] = {"name": "second", "kind": "noop", "result": draw(values(own))}
    first: dict[str, Any] = {"name": "first", "kind": "noop", "result": draw(st.one_of(VALUES, values(roots)))}
    if draw(st.booleans()):
        first["set"] = draw(sets((*roots, "output")))
    if draw(st.booleans()):
        rule = {"else": {"then": {"do": "continue", "set": draw(sets((*roots, "output")))}}}
        second["spec"] = {"policy": {"rules": [rule]}}
    return [first, second]


@st.composite
def playbooks(draw: st.DrawFn) -> str:
    """A document; its first step gives values of many sizes."""
    count = draw(st.integers(2, 4))
    roots: tuple[str, ...] = ("w", "ctx.k0", "ctx.k1", "k2", "workload.w")
    steps: list[dict[str, Any]] = []
    for number in range(count):
        step: dict[str, Any] = {"step": f"s{number}", "tool": draw(tools(roots))}
        if number and draw(st.integers(0, 2)) == 0:
            items = st.one_of(st.sampled_from(["{{ s0.rows }}", "{{ w.rows[:3] }}"]), templates(roots))
            step["loop"] = {"in": draw(items), "iterator": "item"}
            if draw(st.booleans()):
                # Rows that write do so one after the other: of others the last one to end would count.
                step["loop"]["spec"] = {"mode": draw(st.sampled_from(["sequential", "parallel"]))}
                step["tool"] = {"kind": "noop", "result": draw(values((*roots, "item")))}
        own = (*roots, f"s{number}")
        block = draw(sets((*own, "output")))
        if block:
            step["set"] = block
        if draw(st.integers(0, 4)) == 0:
            step["output"] = draw(
                st.sampled_from([{"inline_max_bytes": 0}, {"select": [{"path": "$.n", "as": "sel"}]}])
            )
        step["next"] = {"arcs": draw(arcs(own, number, count))}
        steps.append(step)
        roots = own
    steps.append({"step": "end", "tool": {"kind": "noop", "result": {"all": draw(templates(roots))}}})
    document = {"workload": {"zero": 0, "w": draw(VALUES)}, "workflow": steps}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


# --- without a worker ------------------------------------------------------------------------------------


@st.composite
def routed(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A playbook whose steps do nothing, and what each of them gives: all that happens is the router's."""
    count = draw(st.integers(1, 4))
    roots: tuple[str, ...] = ("w", "ctx.k0", "ctx.k1", "k2", "workload.w", "ctx")
    steps: list[dict[str, Any]] = []
    given: dict[str, Any] = {}
    for number in range(count):
        name = f"s{number}"
        step: dict[str, Any] = {"step": name, "tool": {"kind": "noop"}}
        result = st.one_of(VALUES, st.lists(NUMBERS, max_size=3), TEXTS, NUMBERS, st.just(BOOM))
        given[name] = draw(result)
        if number and draw(st.integers(0, 2)) == 0:
            step["loop"] = {"in": draw(st.one_of(st.just("{{ w.rows }}"), templates(roots))), "iterator": "item"}
            rows = draw(st.lists(result, min_size=1, max_size=3))
            given[name] = lambda index, rows=rows: rows[index % len(rows)]
        if draw(st.integers(0, 4)) == 0:
            rule = {"when": "{{ " + draw(expressions(roots)) + " }}", "then": {"allow": draw(st.booleans())}}
            step["spec"] = {"policy": {"admit": {"rules": [rule]}}}
        own = (*roots, name)
        block = draw(sets((*own, "output", "result")))
        if block:
            step["set"] = block
        step["next"] = {"arcs": draw(arcs(own, number, count))}
        steps.append(step)
        roots = own
    steps.append({"step": "end", "tool": {"kind": "noop"}, "set": {"last": draw(templates(roots))}})
    return graph(*steps, workload={"zero": 0, "w": draw(VALUES)}), given
