"""Guards of the ledger: fences, locks, versions, unique keys."""

from __future__ import annotations

from tests.fault.guards.guard import Guard

_ADVANCE = "adapters/postgres/sql/advance.sql"
_APPEND = "adapters/postgres/sql/append.sql"
_FIRST_TABLES = "adapters/postgres/migrations/0001_pre_ledger.sql"
_FENCED = "tests/contract/test_ledger_advance.py::test_a_fence_that_misses_writes_nothing"
_CURRENT = "tests/contract/test_ledger_advance.py::test_a_stream_that_is_at_another_version_is_not_written_to"
_APPENDED = "tests/contract/test_ledger_append.py"

GUARDS = (
    Guard(
        name="fence epoch, one shard",
        keeps="a server that lost its shard decides nothing more in it",
        file=_ADVANCE,
        text=" AND s.epoch = :epoch::bigint",
        instead="",
        tests=(_FENCED,),
        has_database=True,
    ),
    Guard(
        name="fence epoch, several shards",
        keeps="a server that lost a shard decides nothing more in it",
        file=_ADVANCE,
        text=" AND o.epoch = fence.epoch",
        instead="",
        tests=(_FENCED,),
        has_database=True,
    ),
    Guard(
        name="position seen, one shard",
        keeps="nobody decides without having seen what others appended",
        file=_ADVANCE,
        text=" AND s.next_position = :seen::bigint",
        instead="",
        tests=(_FENCED,),
        has_database=True,
    ),
    Guard(
        name="position seen, several shards",
        keeps="nobody decides without having seen what others appended",
        file=_ADVANCE,
        text=" AND o.next_position = fence.seen",
        instead="",
        tests=(_FENCED,),
        has_database=True,
    ),
    Guard(
        name="version seen, one shard",
        keeps="nobody decides by a state that is not the one of its stream",
        file=_ADVANCE,
        text="AND known.version <> t.version)\n    RETURNING",
        instead="AND false)\n    RETURNING",
        tests=(_CURRENT,),
        has_database=True,
    ),
    Guard(
        name="version seen, several shards",
        keeps="nobody decides by a state that is not the one of its stream",
        file=_ADVANCE,
        text="AND known.version <> t.version\n            WHERE",
        instead="AND false\n            WHERE",
        tests=(_CURRENT,),
        has_database=True,
    ),
    Guard(
        name="unique transition",
        keeps="one transition happens once",
        file=_FIRST_TABLES,
        text="CREATE UNIQUE INDEX uidx_event_transition",
        instead="CREATE INDEX uidx_event_transition",
        tests=("tests/contract/test_ledger_advance.py::test_a_stored_transition_makes_the_whole_commit_fail",),
        has_database=True,
    ),
    Guard(
        name="position lock",
        keeps="the order of positions is the order of commits, without gaps",
        file=_APPEND,
        text="WHERE o.shard_id = t.shard_id FOR UPDATE) AS s",
        instead="WHERE o.shard_id = t.shard_id) AS s",
        tests=("tests/integration/test_ledger_order.py::test_an_append_that_waited_gets_the_positions_behind",),
        has_database=True,
    ),
    Guard(
        name="expected version",
        keeps="a fact that was judged by an older state is judged again",
        file=_APPEND,
        text="OR coalesce(e.expected_version <> coalesce(stream.version, 0), false) END",
        instead="END",
        tests=(f"{_APPENDED}::test_an_expected_version_is_kept",),
        has_database=True,
    ),
    Guard(
        name="stream lock",
        keeps="of two facts that expect the same version one is recorded",
        file=_APPEND,
        text="AND (SELECT count(*) FROM shard) >= 0 FOR UPDATE) AS st",
        instead="AND (SELECT count(*) FROM shard) >= 0) AS st",
        tests=("tests/integration/test_ledger_waits.py::test_an_append_that_waited_is_judged_by_what_it_waited_for",),
        has_database=True,
    ),
    Guard(
        name="closed stream",
        keeps="nothing is recorded behind the end of an execution",
        file=_APPEND,
        text="ELSE coalesce(stream.closed, false)",
        instead="ELSE false",
        tests=(f"{_APPENDED}::test_an_append_to_a_closed_execution_is_refused",),
        has_database=True,
    ),
    Guard(
        name="stored content",
        keeps="a key that is stored with other content is a conflict and no duplicate",
        file=_APPEND,
        text="THEN NOT stored.is_same",
        instead="THEN false",
        tests=(f"{_APPENDED}::test_other_content_is_a_conflict_and_nothing_of_that_offer_is_written",),
        has_database=True,
    ),
    Guard(
        name="idempotency row",
        keeps="a request that is sent again starts nothing again",
        file=_FIRST_TABLES,
        text="PRIMARY KEY (tenant_id, organization_id, idempotency_key)",
        instead="CHECK (true)",
        tests=("tests/contract/test_ledger_advance.py::test_a_taken_idempotency_key_makes_the_whole_commit_fail",),
        has_database=True,
    ),
    Guard(
        name="sync of a commit",
        keeps="what was acknowledged is on the disk of the database",
        file="adapters/postgres/pool.py",
        text="(_DERIVED_SETTINGS if is_derived else {})",
        instead="_DERIVED_SETTINGS",
        tests=("tests/integration/test_commits_on_disk.py::test_only_what_can_be_made_again_is_not_waited_for",),
        has_database=True,
    ),
    Guard(
        name="sync of a server's commits",
        keeps="what a server acknowledged is on the disk of the database",
        file="wiring/engine.py",
        text="self._writer = Writer(database)",
        instead="self._writer = Writer(database, is_derived=True)",
        tests=(
            "tests/integration/test_commits_on_disk.py::test_no_ledger_of_a_server_writes_as_if_it_could_be_made_again",
        ),
        has_database=True,
    ),
    Guard(
        name="event checksum",
        keeps="a damaged event is found when it is read",
        file="adapters/postgres/rows.py",
        text='if checksum_of(event, bodies) != row["checksum"]:',
        instead="if False:",
        tests=("tests/contract/test_ledger_shape.py::test_a_damaged_row_is_found_when_it_is_read",),
        has_database=True,
    ),
)
