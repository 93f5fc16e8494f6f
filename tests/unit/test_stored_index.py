"""The JSON of a large value with an index: the same bytes, and any part of them by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.codec import canonical_bytes, ordered_bytes, parse_json
from noetl.core.errors import TemplateRefused
from noetl.core.expression import Absent, compile_template, render, view_of
from noetl.core.results.index import (
    IndexedJson,
    Node,
    Part,
    index_document,
    index_from_document,
    parsed_part,
)
from noetl.core.results.stored import Origin, stored

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.floats(allow_nan=False, allow_infinity=False)
)
CONTAINERS = st.recursive(
    st.one_of(st.lists(SCALARS, max_size=5), st.dictionaries(st.text(max_size=4), SCALARS, max_size=5)),
    lambda inner: st.one_of(
        st.lists(st.one_of(SCALARS, inner), max_size=5),
        st.dictionaries(st.text(max_size=4), st.one_of(SCALARS, inner), max_size=5),
    ),
    max_leaves=30,
)


class Source:
    """Bytes that are given out part by part; only those in `here` are here."""

    def __init__(self, content: bytes, *, has_all: bool = True) -> None:
        self.content = content
        self.has_all = has_all
        self.here: set[int] = set()
        self.read: list[int] = []

    def members(self, node: Node, part: Part) -> Any:
        if not self.has_all and part.offset not in self.here:
            raise Absent(part)
        content = self.content[part.offset : part.offset + part.length]
        assert hashlib.sha256(content).hexdigest() == part.sha256
        self.read.append(part.offset)
        return parsed_part(node.is_list, content)

    def need(self, node: Node, parts: Sequence[Part] | None = None) -> None:
        leaves = node.leaves() if parts is None else parts
        missing = [part for part in leaves if not self.has_all and part.offset not in self.here]
        if missing:
            raise Absent(missing)


def written(value: Any, part_bytes: int) -> tuple[bytes, Node]:
    writer = IndexedJson(value, part_bytes=part_bytes)
    content = b"".join(writer.pieces())
    assert writer.root is not None
    document = parse_json(canonical_bytes(index_document(writer.root)))
    root = index_from_document(document)
    assert root == writer.root
    return content, writer.root


def seen(expression: str, value: object) -> object:
    return render(compile_template("{{ " + expression + " }}"), {"v": value})


@given(CONTAINERS, st.sampled_from([0, 1, 7, 40, 100_000]))
@settings(max_examples=300)
def test_the_bytes_are_those_of_the_value_and_every_part_is_found(value: Any, part_bytes: int) -> None:
    content, root = written(value, part_bytes)
    assert content == ordered_bytes(value)
    view = stored(Source(content), root, None)
    assert view._plain() == value
    assert len(view) == len(value)
    assert list(view) == list(value)
    assert bool(view) == bool(value)
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in members:
        found = view._find(key)
        assert (found._plain() if hasattr(found, "_plain") else found) == item
        assert view._place(key) == (key,)


def outcome(expression: str, value: object) -> object:
    try:
        return seen(expression, value)
    except TemplateRefused:
        return "refused"


@given(CONTAINERS, st.sampled_from([0, 10, 100_000]), st.text(max_size=4), st.integers(-9, 9))
def test_what_is_not_there_is_not_found(value: Any, part_bytes: int, key: str, index: int) -> None:
    content, root = written(value, part_bytes)
    view = stored(Source(content), root, None)
    for one in (key, index):
        expression = f"v[{one!r}] is defined"
        assert outcome(expression, view) == outcome(expression, value)


@pytest.mark.parametrize(
    "expression",
    [
        "v.rows[700].n",
        "v.rows[-1].n",
        "v.rows | length",
        "v.rows | count",
        "(v.rows | first).n",
        "(v.rows | last).n",
        "v.rows[3:5]",
        "v.rows[::400]",
        "v.n",
        "v.deep.a.b[2]",
        "v.nothing is defined",
        "v.rows is defined and v.rows is sequence and v is mapping and v.rows is not none",
        "'rows' in v and 'zzz' not in v",
        "v.rows[5000] is defined",
        "1 if v.rows else 2",
        "v.data.rows[1].n",
        "v.status",
    ],
)
def test_an_expression_gives_the_same_and_reads_little(expression: str) -> None:
    value = {"rows": [{"n": n, "text": "x" * 20} for n in range(1000)], "n": 5, "deep": {"a": {"b": [1, 2, 3]}}}
    content, root = written(value, 1_000)
    source = Source(content)
    assert seen(expression, view_of(stored(source, root, None))) == seen(expression, view_of(value))
    assert len(set(source.read)) <= 3


def test_whole_values_and_unusual_questions_read_everything() -> None:
    value = {"rows": [{"n": n} for n in range(1000)], "n": 5}
    content, root = written(value, 500)
    for expression in (
        "v",
        "v.rows",
        "v.data",
        "v | tojson",
        "v.rows | map(attribute='n') | sum",
        "v == v",
        "{'a': v}",
    ):
        assert seen(expression, view_of(stored(Source(content), root, None))) == seen(expression, view_of(value))


def test_a_look_at_what_is_not_here_says_what_is_missing() -> None:
    value = {"rows": [{"n": n, "text": "x" * 20} for n in range(1000)], "n": 5}
    content, root = written(value, 1_000)
    source = Source(content, has_all=False)
    view = view_of(stored(source, root, Origin({"sha256": "0"}, ())))
    assert seen("v.rows | length", view) == 1000
    with pytest.raises(Absent) as absent:
        seen("v.rows[500].n", view)
    part: Any = absent.value.part
    assert part.length <= 1_100
    source.here.add(part.offset)
    assert seen("v.rows[500].n", view) == 500
    with pytest.raises(Absent) as absent:
        seen("v", view)
    missing: Any = absent.value.part
    source.here.update(one.offset for one in missing)
    assert seen("v", view) == value


def test_large_lists_in_lists_and_mappings_by_key_have_parts_of_their_own() -> None:
    value = {"table": {f"k{n:05}": [n] * 50 for n in range(2000)}, "lists": [[1] * 2000, [2] * 3000, "x" * 5000]}
    content, root = written(value, 4_096)
    assert content == ordered_bytes(value)
    assert max(part.length for part in root.leaves()) < 6_000
    source = Source(content)
    view = stored(source, root, None)
    assert seen("v.table.k01999[3] + v.lists[1][2999]", view) == 2001
    assert len(source.read) == 2


def test_an_index_of_another_version_is_left_alone() -> None:
    assert index_from_document([0, []]) is None
