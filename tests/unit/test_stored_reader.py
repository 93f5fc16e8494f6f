"""Stored results as names of templates: no more of them is read than a template looks at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.codec import canonical_bytes, ordered_bytes
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.execution.state import Entry, entry_from_json
from noetl.core.execution.writes import nested, write
from noetl.core.expression import Scope, bare, compile_template, loaded, pack, render, unpack
from noetl.core.reference import MEDIA_JSON, MEDIA_LOOP, MEDIA_PIPELINE, Reference
from noetl.engine.payloads import Payloads
from noetl.engine.stored.outcome import output_of
from noetl.engine.stored.places import stored_place
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from tests.support.aio import asynchronous
from tests.support.thresholds import ZERO, thresholds

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
ROWS = [{"n": n, "text": "x" * 50} for n in range(20_000)]
BIG = {"row_count": len(ROWS), "rows": ROWS, "note": "small"}


class Counting(MemoryPayloads):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__({})
        self.bytes_read = 0

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        content = await super().get(reference, tenant_id=tenant_id, organization_id=organization_id)
        self.bytes_read += len(content)
        return content

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        self.bytes_read += length
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await super().get_range(reference, offset=offset, length=length, **owner)


class Shelf:
    """A store with one result in it, read by somebody who has not written it."""

    def __init__(self) -> None:
        self.store = Counting()
        self.reference: dict[str, Any] = {}

    async def keep(self, value: object, media_type: str = MEDIA_JSON) -> dict[str, Any]:
        payloads = self.payloads()
        payload = await payloads.keep_json(value, media_type=media_type, **OWNER)
        await payloads.store(payload)
        self.reference = payload.reference.to_json()
        self.store.bytes_read = 0
        return self.reference

    def payloads(self) -> Payloads:
        return Payloads(small=self.store, large=self.store)

    def envelope(self, **more: object) -> dict[str, Any]:
        return {"status": "ok", "ref": self.reference, **more}

    async def ask(self, expression: str, **more: object) -> object:
        view = Reader(self.payloads(), **OWNER).step(self.envelope(**more))
        template = compile_template("{{ " + expression + " }}")
        return await settled(lambda: render(template, {"s": view}))


# --- large results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("s.row_count", 20_000),
        ("s.note", "small"),
        ("s.rows | length", 20_000),
        ("s.rows[11000].n", 11_000),
        ("s.rows[-1].n", 19_999),
        ("s.data.rows[5].n", 5),
        ("s.rows[100:102] | map(attribute='n') | list", [100, 101]),
        ("s.status", "ok"),
        ("s.missing is defined", False),
        ("s is mapping", True),
    ],
)
@asynchronous
async def test_a_small_part_of_a_large_result_costs_little(expression: str, value: object) -> None:
    shelf = Shelf()
    await shelf.keep(BIG)
    assert shelf.reference["bytes"] > 1_000_000
    assert "index" in shelf.reference
    assert await shelf.ask(expression) == value
    assert shelf.store.bytes_read < 400_000


@asynchronous
async def test_the_whole_of_a_large_result_is_the_value_keys_in_their_order() -> None:
    shelf = Shelf()
    await shelf.keep(BIG)
    found: Any = await shelf.ask("s")
    assert found == BIG
    assert list(found) == ["row_count", "rows", "note"]
    assert await shelf.payloads().read_json(shelf.reference, **OWNER) == BIG


@asynchronous
async def test_a_large_pipeline_is_not_merged_to_be_read() -> None:
    shelf = Shelf()
    await shelf.keep({"order": ["pull", "fold"], "results": {"pull": BIG, "fold": {"more": False}}}, MEDIA_PIPELINE)
    for expression, value in (
        ("s.more", False),
        ("s.pull.rows[7].n", 7),
        ("s.row_count", 20_000),
        ("s._prev", {"more": False}),
    ):
        shelf.store.bytes_read = 0
        assert await shelf.ask(expression) == value
        assert shelf.store.bytes_read < 400_000, expression


@asynchronous
async def test_damaged_parts_are_never_returned() -> None:
    shelf = Shelf()
    await shelf.keep(BIG)
    key = ("acme", "sales", shelf.reference["sha256"])
    content = bytearray(shelf.store._contents[key])
    content[len(content) // 2] ^= 1
    shelf.store._contents[key] = bytes(content)
    assert await shelf.ask("s.rows[0].n") == 0
    with pytest.raises(PayloadCorrupt, match="another digest"):
        await shelf.ask("s.rows | map(attribute='n') | sum")


@asynchronous
async def test_a_look_that_needs_more_than_is_held_ends_all_the_same() -> None:
    shelf = Shelf()
    with thresholds({**ZERO, "INDEX_PART_BYTES": 200}):
        await shelf.keep({"rows": list(range(3_000))})
        assert await shelf.ask("s.rows[1] + s.rows[2000] + s.rows[1000] + s.rows[2999] + s.rows[1]") == 6_001
        assert await shelf.ask("s.rows") == list(range(3_000))


VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([0, 3, 20]))
@settings(max_examples=60)
@asynchronous
async def test_what_is_kept_is_what_is_read(value: object, part_bytes: int) -> None:
    shelf = Shelf()
    with thresholds({"INDEX_PART_BYTES": part_bytes, "PAYLOAD_INLINE_BYTES_MAX": 10}):
        await shelf.keep(value)
        assert await shelf.ask("s") == value
    assert shelf.store._contents["acme", "sales", shelf.reference["sha256"]] == ordered_bytes(value)


# --- what travels with the event -------------------------------------------------------------------------


@asynchronous
async def test_selected_fields_and_extras_need_no_result() -> None:
    shelf = Shelf()
    await shelf.keep({"a": {"b": 5, "c": 6}, "n": 7})
    shelf.store._contents.clear()
    selected = [["five", ["a", "b"], {"v": 5}], [None, ["n"], {"v": 7}], ["six", ["a", "c"], {"a": ["a", "c"]}]]
    more: dict[str, Any] = {"selected": selected, "stored": {"store": "kv", "bytes": 99, "preview": 10}}
    assert await shelf.ask("[s.five, s.n, s.a.b, s._store, s._size_bytes, s._ref.bytes > 5]", **more) == [
        *(5, 7, 5, "kv", 99),
        True,
    ]
    for expression in ("s.six", "s.a.c", "s.a", "s", "s._preview"):
        with pytest.raises(PayloadMissing):
            await shelf.ask(expression, **more)


@asynchronous
async def test_selected_fields_change_nothing_of_the_result() -> None:
    shelf = Shelf()
    await shelf.keep({"a": {"b": 5, "c": 6}, "n": 7})
    selected = [["six", ["a", "c"], {"a": ["a", "c"]}], [None, ["a", "b"], {"v": 5}]]
    assert await shelf.ask("[s.six, s.a.c, s.a, s | length]", selected=selected) == [6, 6, {"b": 5, "c": 6}, 2]
    assert await shelf.ask("s", selected=selected) == {"a": {"b": 5, "c": 6}, "n": 7}
    assert await shelf.ask("s._preview", stored={"store": "kv", "bytes": 1, "preview": 12}) == '{"a":{"b":5,'


@asynchronous
async def test_a_key_of_the_result_stands_above_the_names_beside_it() -> None:
    shelf = Shelf()
    await shelf.keep({"_ref": "own"})
    stored = {"store": "kv", "bytes": 9, "preview": 5, "own": ["_ref"]}
    assert await shelf.ask("[s._ref, s._store]", stored=stored) == ["own", "kv"]


@asynchronous
async def test_the_error_of_a_failed_step_has_every_member() -> None:
    shelf = Shelf()
    await shelf.keep({"n": 1})
    error = {
        "kind": "rate_limit",
        "code": "HTTP_429",
        "status": 429,
        "retryable": True,
        "message": "slow",
        "retry_after": 3,
    }
    more: dict[str, Any] = {"status": "error", "error": error}
    assert await shelf.ask("[s.status, s.n, s.error.http_status, s.error.retry_after, s.error.pg_code]", **more) == [
        *("error", 1, 429, 3),
        None,
    ]
    shelf.reference = None  # type: ignore[assignment]
    assert await shelf.ask("[s.status, s.error.status_code, s.n is defined]", **more) == ["error", 429, False]


# --- entries of the context ------------------------------------------------------------------------------

PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3)
SMALL = st.one_of(st.integers(0, 9), st.dictionaries(st.sampled_from(["a", "b", "x"]), st.integers(0, 9), max_size=2))


@given(st.lists(st.tuples(PATHS, SMALL, st.booleans()), max_size=8))
@settings(max_examples=150)
@asynchronous
async def test_writes_to_parts_are_the_same_inline_and_by_reference(writes: list[tuple[list[str], Any, bool]]) -> None:
    """Whatever part is written, and wherever the rest is: the value is what it would be in one piece."""
    shelf = Shelf()
    inline: dict[str, Any] = {}
    variables: Any = {}
    for path, value, is_stored in writes:
        inline = nested(inline, path, value)
        item: dict[str, Any] = {"path": path, "v": value}
        if is_stored:
            item = {"path": path, "ref": await shelf.keep({"at": value}), "at": ["at"]}
        variables = write(variables, [item])
    again = {name: entry_from_json(entry.to_json()) for name, entry in variables.items()}
    assert again == variables
    reader = Reader(shelf.payloads(), **OWNER)
    found = {name: reader.entry(entry.to_json()) for name, entry in variables.items()}
    assert {name: await settled(lambda view=view: bare(view)) for name, view in found.items()} == inline  # type: ignore[misc]
    for expression in ("a.b", "a.b.c", "a.x", "c.a", "b", "a.b.c is defined", "a.a.b | default(7)"):
        template = compile_template("{{ " + expression + " }}")
        assert await settled(lambda template=template: render(template, found)) == render(template, inline)  # type: ignore[misc]


def test_writes_to_parts_of_what_is_inline_stay_inline() -> None:
    state = write({}, [{"path": ["a"], "v": {"n": 1}}, {"path": ["a", "b", "c"], "v": 2}])
    assert state == {"a": Entry({"n": 1, "b": {"c": 2}})}
    reference = {"sha256": "0"}
    state = write(state, [{"path": ["a", "x"], "ref": reference, "at": []}, {"path": ["a", "n"], "v": 5}])
    assert state == {"a": Entry({"n": 5, "b": {"c": 2}}, patches=((("x",), Entry(None, reference)),))}
    state = write(state, [{"path": ["a", "x", "y"], "v": 1}, {"path": ["a", "x"], "v": 3}])
    assert state["a"].patches == ((("x",), Entry(3)),)
    assert write(state, [{"path": ["a"], "v": 1}]) == {"a": Entry(1)}


# --- places ----------------------------------------------------------------------------------------------


@asynchronous
async def test_a_large_value_is_pointed_at_wherever_a_path_leads() -> None:
    shelf = Shelf()
    whole = await shelf.keep({"order": ["pull"], "results": {"pull": {"body": BIG}}}, MEDIA_PIPELINE)
    reader = Reader(shelf.payloads(), **OWNER)
    names = {"s": reader.step(shelf.envelope()), "e": reader.entry({"ref": whole, "path": ["pull", "body"]})}
    for path, place, count in (
        (("s", "pull", "body", "rows"), ("pull", "body", "rows"), 20_000),
        (("e", "rows"), ("pull", "body", "rows"), 20_000),
        (("e",), ("pull", "body"), None),
        (("s", "body", "rows"), ("body", "rows"), 20_000),
    ):
        found = await settled(lambda path=path: stored_place(names, path, 1_024))  # type: ignore[misc]
        assert found is not None
        assert (found.reference.sha256, found.path, found.count) == (whole["sha256"], place, count)
        value = await settled(lambda found=found: bare(reader.entry({"ref": whole, "path": found.path})))  # type: ignore[misc]
        assert canonical_bytes(value) == canonical_bytes(BIG if count is None else ROWS)
    for small in (("s", "pull", "body", "note"), ("s", "missing"), ("e", "rows", 0, "text")):
        assert await settled(lambda path=small: stored_place(names, path, 1_024)) is None  # type: ignore[misc]


# --- on their way to a child process ---------------------------------------------------------------------


@asynchronous
async def test_names_that_go_to_a_child_process_are_complete() -> None:
    shelf = Shelf()
    error = {"kind": "python", "code": None, "status": None, "retryable": False, "message": "boom"}
    with thresholds(ZERO):
        names: dict[str, Any] = {}
        reader = Reader(shelf.payloads(), **OWNER)
        stored = {"store": "kv", "bytes": 9, "preview": 8}
        reference = await shelf.keep({"rows": [1, 2], "n": 3})
        names["plain"] = reader.step(shelf.envelope(stored=stored))
        names["failed"] = reader.step(shelf.envelope(status="error", error=error))
        names["part"] = reader.entry({"ref": reference, "path": ["rows"]})
        patch = {"below": ["x", "y"], "ref": reference, "path": ["n"]}
        names["patched"] = reader.entry({"v": {"x": {"z": 1}}, "patches": [patch]})
        await shelf.keep([7, 8])
        names["rows"] = reader.step(shelf.envelope())
        await shelf.keep("text")
        names["text"] = reader.step(shelf.envelope())
        await shelf.keep({"order": ["a"], "results": {"a": {"n": 5}}, "x": {"a": {"_store": "kv"}}}, MEDIA_PIPELINE)
        names["pipe"] = reader.step(shelf.envelope())
        names["bad_pipe"] = reader.step(shelf.envelope(status="error", error=error))
        frames = [
            {"first": 0, "rows": 2, "ref": await shelf.keep({"first": 0, "records": [{"v": {"n": 1}}, {"v": 2}]})}
        ]
        counts = {"total": 2, "success": 2, "failed": 0, "status": "ok"}
        await shelf.keep({**counts, "frames": frames}, MEDIA_LOOP)
        names["loop"] = reader.step(shelf.envelope())
        names["bad_loop"] = reader.step(shelf.envelope(status="error", error=error))
        names["output"] = output_of(shelf.envelope(stored=stored), names["loop"])
        names["wrong"] = output_of(shelf.envelope(status="error", error=error), names["bad_pipe"])
        names["ctx"] = Scope({"part": names["part"]}, {"loop": names["loop"]})
        names["steps"] = {"pipe": names["pipe"], "n": 1}
        complete = await settled(lambda: {name: loaded(value) for name, value in names.items()})
    shelf.store._contents.clear()
    arrived = unpack(json.loads(json.dumps(pack(complete))))
    for expression, value in (
        ("plain.rows | length + plain.n", 5),
        ("plain._preview", '{"rows":'),
        ("failed.error.message ~ failed.n", "boom3"),
        ("part[1] + patched.x.y + patched.x.z", 6),
        ("rows.data[1]", 8),
        ("text ~ text.data", "texttext"),
        ("pipe.n + pipe.a.n + pipe._prev.n", 15),
        ("pipe.a._store ~ pipe.status", "kvok"),
        ("bad_pipe.status ~ bad_pipe.results.a.n", "error5"),
        ("loop.results[0].data.n + loop.data[1] + loop.count", 5),
        ("bad_loop.error.kind ~ bad_loop.results[1]", "python2"),
        ("output.status ~ output.data.count ~ output.results[1] ~ (output.ref.bytes > 1)", "ok22True"),
        ("wrong.error.kind ~ wrong.data.a.n ~ wrong.a.status", "python5ok"),
        ("ctx.part[0] + ctx.loop.results[1]", 3),
        ("ctx", {"part": [1, 2]}),
        ("steps.pipe.a.n + steps.n", 6),
    ):
        template = compile_template("{{ " + expression + " }}")
        assert render(template, arrived) == value, expression
        assert render(template, complete) == value, expression
