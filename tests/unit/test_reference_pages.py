"""The generated pages of docs/reference are what their generator says, and they leave nothing out.

After a change of `core/event.py` or of a migration:  python -m noetl.cli.reference"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from noetl.cli.reference import (
    DESIGN_EVENTS,
    ENVELOPE,
    MEMBERS,
    NOT_IN_THE_LEDGER,
    REPLACED_COLUMNS,
    Column,
    Index,
    Schema,
    events_markdown,
    main,
    read_schema,
    schema_markdown,
)
from noetl.core.kinds import KINDS

PAGES = Path(__file__).parents[2] / "docs" / "reference"
# The list of event types in the engine's design, in its order, with the heartbeats that it leaves out.
DESIGN = [
    *("playbook.initialized", "workflow.initialized", "command.issued", "command.claimed", "command.started"),
    *("command.completed", "command.failed", "step.enter", "step.exit", "call.done", "call.error", "loop.done"),
    *("batch.accepted", "batch.processing", "batch.completed", "batch.failed", "heartbeats"),
    *("loop.started", "loop.item", "stage.opened", "stage.closed", "frame.dispatched", "frame.started"),
    *("frame.heartbeat", "frame.committed", "frame.failed", "frame.abandoned"),
    *("loop.fanout.started", "loop.shard.done", "loop.shard.failed", "loop.fanin.completed"),
    *("playbook.completed", "playbook.failed", "execution.cancelled"),
]


def schema() -> Schema:
    folder = files("noetl").joinpath("adapters", "postgres", "migrations")
    texts = sorted((e.name, e.read_text("utf-8")) for e in folder.iterdir() if e.name.endswith(".sql"))
    return read_schema([text for _, text in texts])


@pytest.mark.parametrize(("name", "text"), [("events.md", events_markdown()), ("schema.md", schema_markdown())])
def test_the_page_is_up_to_date(name: str, text: str) -> None:
    assert (PAGES / name).read_text("utf-8") == text, "run: python -m noetl.cli.reference"


def test_the_pages_are_written_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    main()
    assert (tmp_path / "docs" / "reference" / "events.md").read_text("utf-8") == events_markdown()
    assert (tmp_path / "docs" / "reference" / "schema.md").read_text("utf-8") == schema_markdown()


# --- events ----------------------------------------------------------------------------------------------


def test_every_event_of_the_design_is_carried_or_explained() -> None:
    assert list(DESIGN_EVENTS) == DESIGN
    carried = {name for kind in KINDS.values() for name in kind.carries}
    assert carried | set(NOT_IN_THE_LEDGER) == set(DESIGN)
    assert not carried & set(NOT_IN_THE_LEDGER)


@pytest.mark.parametrize("name", [name for name in DESIGN if name.startswith("batch.")] + ["heartbeats"])
def test_transport_never_reaches_the_ledger(name: str) -> None:
    assert "transport" in NOT_IN_THE_LEDGER[name]
    assert name not in KINDS


def test_every_kind_of_event_is_on_the_page_with_its_key_and_members() -> None:
    page = events_markdown()
    for kind in KINDS.values():
        section = page.partition(f"## `{kind.event_type}`\n")[2].partition("\n## ")[0]
        assert kind.says in section
        assert f"`{kind.transition_key}`" in section
        for member in kind.meta:
            assert f"| `{member}` | {MEMBERS[member]} |" in section.replace("\\|", "|")


def test_every_member_is_explained_and_none_is_left_over() -> None:
    assert {member for kind in KINDS.values() for member in kind.meta} == set(MEMBERS)


def test_the_envelope_is_the_row_of_the_ledger() -> None:
    members = {name for names in ENVELOPE for name in names.split(", ")}
    columns = {column.name for column in schema().tables["event"].columns}
    # Stages and frames have their columns and no events yet.
    assert members | {"stage_id", "frame_id", "parent_event_id"} == columns


# --- schema ----------------------------------------------------------------------------------------------


def test_every_table_column_and_index_is_on_the_page() -> None:
    page = schema_markdown()
    for table in schema().tables.values():
        section = page.partition(f"## `{table.name}`\n")[2].partition("\n## ")[0]
        assert all(f"| `{column.name}` | {column.type} |" in section for column in table.columns)
        assert all(f"`{index.name}`" in section for index in table.indexes)
        assert table.comment in section


def test_what_replaces_a_column_of_the_design_exists() -> None:
    tables = schema().tables
    replaced = re.findall(r"`(event|stream|command|execution)\.(\w+)`", " ".join(here for _, here in REPLACED_COLUMNS))
    assert len(replaced) > 15
    for table, column in replaced:
        assert column in {known.name for known in tables[table].columns}


def test_a_published_view_names_columns_of_its_table_and_is_on_the_page() -> None:
    found = schema()
    assert {view.name for view in found.views} == {
        f"noetl_views.{name}"
        for name in ("executions", "events", "commands", "result_refs", "shards", "ledger", "stages", "frames")
    }
    for view in found.views:
        assert set(view.columns) <= {column.name for column in found.tables[view.table].columns}
        assert f"## View `{view.name}`\n\n{view.comment}\n" in schema_markdown()


SAMPLE = """
-- A comment about the file.

-- What it is:
-- two lines.
CREATE TABLE noetl.thing (
    id     bigint      PRIMARY KEY, -- a remark
    price  numeric(10, 2) NOT NULL DEFAULT 0,
    note   text,
    CONSTRAINT chk CHECK (note <> ';' AND price IN (1, 2))
) WITH (fillfactor = 70);
INSERT INTO noetl.thing VALUES (1, 2, 'it''s; fine');
-- Why.
CREATE UNIQUE INDEX uidx ON noetl.thing (note) WHERE note IS NOT NULL;
CREATE INDEX idx ON noetl.thing (price);
-- Says yes.
CREATE FUNCTION noetl.yes(x integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;
CREATE TABLE noetl.part PARTITION OF noetl.thing FOR VALUES FROM (0) TO (9);
"""


def test_a_migration_is_read_with_its_comments() -> None:
    found = read_schema([SAMPLE, "ALTER TABLE noetl.thing ADD COLUMN later text NOT NULL;"])
    table = found.tables["thing"]
    assert table.comment == "What it is: two lines."
    assert table.columns == [
        Column("id", "bigint", "PRIMARY KEY"),
        Column("price", "numeric(10, 2)", "NOT NULL DEFAULT 0"),
        Column("note", "text", ""),
        Column("later", "text", "NOT NULL"),
    ]
    assert table.rules == ["CONSTRAINT chk CHECK (note <> ';' AND price IN (1, 2))", "WITH (fillfactor = 70)"]
    assert table.indexes == [
        Index("uidx", "unique (note) WHERE note IS NOT NULL", "Why."),
        Index("idx", "(price)", ""),
    ]
    assert table.partitions == ["part FOR VALUES FROM (0) TO (9)"]
    assert found.functions == {"noetl.yes(x integer) RETURNS boolean": "Says yes."}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DROP TABLE noetl.thing;", "unknown form: DROP TABLE"),
        ("CREATE TABLE noetl.thing (id bigint", "no end"),
        ("CREATE TABLE noetl.thing (id bigint;", "not closed"),
    ],
)
def test_a_statement_that_is_not_understood_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_schema([text])
