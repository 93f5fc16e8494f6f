"""Guards of the control plane: who is heard about a command, who owns what, what may stand in for folding."""

from __future__ import annotations

from tests.fault.guards.guard import Guard

_SERVING = "adapters/postgres/sql/serving.sql"
_DURABILITY = "adapters/postgres/sql/durability.sql"
_PROJECTING = "adapters/postgres/sql/projecting.sql"
_SNAPSHOT = "core/snapshot/snapshot.py"
_LATER_TABLES = "adapters/postgres/migrations/0009_pre_control_plane.sql"
_PROJECTED = "tests/contract/test_projections.py"
_DURABLE = "tests/contract/test_durability.py"
_LATE = "tests/simulation/test_late_words.py"
_IGNORED = "tests/unit/test_snapshot.py::test_a_snapshot_is_ignored"

GUARDS = (
    Guard(
        name="attempt of a fact",
        keeps="only the attempt that holds a command is heard",
        file="engine/control/inputs.py",
        text="command.attempt != fact.attempt or command.status is not CommandStatus.CLAIMED",
        instead="command.status is not CommandStatus.CLAIMED",
        tests=(
            "tests/simulation/test_jobs.py"
            "::test_after_a_crash_the_next_attempt_tells_its_own_job_and_the_first_one_is_not_heard_any_more",
        ),
        is_quick=True,
    ),
    Guard(
        name="holder of a command",
        keeps="nobody is heard about a command that nobody holds",
        file="engine/control/inputs.py",
        text="command.attempt != fact.attempt or command.status is not CommandStatus.CLAIMED",
        instead="command.attempt != fact.attempt",
        tests=(f"{_LATE}::test_nobody_is_heard_about_a_command_that_waits_for_its_next_attempt",),
    ),
    Guard(
        name="end of an execution",
        keeps="whoever speaks behind the end of an execution learns that it has ended",
        file="engine/control/inputs.py",
        text='raise ExecutionClosed(f"execution {fact.execution_id} has ended: a late fact is refused")',
        instead="pass",
        tests=(f"{_LATE}::test_nobody_is_heard_behind_the_end_of_an_execution",),
    ),
    Guard(
        name="session of a late fact",
        keeps="whoever let its session die is not heard any more",
        file="engine/sessions/keeper.py",
        text="if session.session_id not in self._remote:",
        instead="if False:",
        tests=(
            "tests/simulation/test_sessions.py"
            "::test_a_silent_session_is_dead_its_commands_go_back_and_its_facts_are_refused",
        ),
        is_quick=True,
    ),
    Guard(
        name="attempt of a session",
        keeps="a session speaks only about what it was given",
        file="engine/sessions/remote.py",
        text="if message is None or message.attempt != attempt:\n            raise",
        instead="if message is None:\n            raise",
        tests=(f"{_LATE}::test_a_session_holds_one_attempt_of_a_command_and_no_other",),
    ),
    Guard(
        name="lease of a session",
        keeps="a session that is silent for longer than its lease is dead",
        file="engine/sessions/keeper.py",
        text='self.end(session.session_id, "no heartbeat came: the session is dead")',
        instead="session.seen_at = now",
        tests=(
            "tests/simulation/test_sessions.py"
            "::test_a_silent_session_is_dead_its_commands_go_back_and_its_facts_are_refused",
        ),
    ),
    Guard(
        name="row of a claim",
        keeps="two servers never give the same command to two sessions",
        file=_SERVING,
        text="c.session_id IS NULL AND c.attempt <= t.attempt OR",
        instead="c.attempt <= t.attempt OR",
        tests=("tests/contract/test_serving.py::test_a_row_is_taken_once",),
        has_database=True,
    ),
    Guard(
        name="node number of the living",
        keeps="no two processes make the same id",
        file=_SERVING,
        text="WHERE noetl.runtime.leased_until < clock_timestamp()\n    RETURNING",
        instead="RETURNING",
        tests=("tests/integration/test_node_numbers.py::test_processes_that_start_at_once_have_numbers_of_their_own",),
        has_database=True,
    ),
    Guard(
        name="last id of a node number",
        keeps="ids go on rising when a number is taken over by a machine whose clock is behind",
        file=_SERVING,
        text=", last_id = :last_id::bigint,\n",
        instead=",\n",
        tests=("tests/integration/test_node_numbers.py::test_whoever_takes_a_number_over_goes_on_behind_its_last_id",),
        has_database=True,
    ),
    Guard(
        name="owner of a shard",
        keeps="a shard whose owner is alive is not taken",
        file=_SERVING,
        text="WHERE r.runtime_id = s.owner_runtime_id AND r.alive_until > clock_timestamp())\n    ORDER BY s.shard_id",
        instead="WHERE false)\n    ORDER BY s.shard_id",
        tests=("tests/contract/test_serving.py::test_free_shards_are_claimed_up_to_a_number_and_their_epoch_rises",),
        has_database=True,
    ),
    Guard(
        name="epoch of a claimed shard",
        keeps="whatever an earlier owner still writes fails on the fence",
        file=_SERVING,
        text="SET epoch = s.epoch + 1, owner_runtime_id",
        instead="SET owner_runtime_id",
        tests=(
            "tests/contract/test_serving.py::test_shards_of_a_silent_owner_are_free_and_its_late_commit_is_refused",
        ),
        has_database=True,
    ),
    Guard(
        name="epoch of a projector",
        keeps="a projector that lost its shard shows nothing more of it",
        file=_PROJECTING,
        text="AND c.epoch = t.epoch AND c.position = t.seen",
        instead="AND c.position = t.seen",
        tests=(f"{_PROJECTED}::test_a_late_write_of_the_owner_before_is_refused",),
        has_database=True,
    ),
    Guard(
        name="position of a projector",
        keeps="a commit whose outcome was not known is not made twice",
        file=_PROJECTING,
        text="AND c.epoch = t.epoch AND c.position = t.seen",
        instead="AND c.epoch = t.epoch",
        tests=(f"{_PROJECTED}::test_a_move_that_is_not_right_writes_nothing",),
        has_database=True,
    ),
    Guard(
        name="row of a projection",
        keeps="what is shown of an execution never goes back",
        file=_PROJECTING,
        text="WHERE noetl.execution.applied_position <= excluded.applied_position",
        instead="",
        tests=(f"{_PROJECTED}::test_a_row_never_goes_back",),
        has_database=True,
    ),
    Guard(
        name="checksum of a snapshot",
        keeps="a state is restored only from the bytes that were written",
        file=_SNAPSHOT,
        text=" or _checksum(document) != snapshot.checksum",
        instead="",
        tests=(_IGNORED,),
        is_quick=True,
    ),
    Guard(
        name="fold of a snapshot",
        keeps="a state that another release folded is folded again",
        file=_SNAPSHOT,
        text="if (snapshot.code_version, snapshot.upcaster_digest) != (CODE_VERSION, UPCASTERS.digest):",
        instead="if False:",
        tests=(_IGNORED,),
    ),
    Guard(
        name="checkpoint of an epoch",
        keeps="an epoch of a shard has one checkpoint",
        file=_LATER_TABLES,
        text="PRIMARY KEY (execution_id, epoch)",
        instead="CHECK (true)",
        tests=("tests/integration/test_table_keys.py::test_an_epoch_of_a_shard_has_one_checkpoint",),
        has_database=True,
    ),
    Guard(
        name="lease of a role",
        keeps="a role has one holder",
        file=_DURABILITY,
        text="WHERE r.runtime_id = excluded.runtime_id OR r.leased_until < clock_timestamp()",
        instead="",
        tests=(f"{_DURABLE}::test_a_role_has_one_holder_until_its_lease_runs_out",),
        has_database=True,
    ),
    Guard(
        name="role of a checkpoint",
        keeps="whoever lost the role of the checkpointer commits nothing",
        file=_DURABILITY,
        text=" AND EXISTS (SELECT 1 FROM role) FOR UPDATE",
        instead=" FOR UPDATE",
        tests=(f"{_DURABLE}::test_whoever_lost_the_role_commits_nothing",),
        has_database=True,
    ),
    Guard(
        name="fate of a cursor's claim",
        keeps="rows of a claim that was rolled back are claimed anew and not worked off as they were",
        file="engine/work/frames/claiming.py",
        text="if await self._fate(call, self._known) is TransactionStatus.COMMITTED:",
        instead="if True:",
        tests=("tests/simulation/test_cursors.py::test_a_claim_whose_connection_breaks_loses_no_row_and_repeats_none",),
        is_quick=True,
    ),
    Guard(
        name="open claim of a cursor",
        keeps="a claim that may still commit is waited for",
        file="engine/work/frames/claiming.py",
        text="if status is not TransactionStatus.IN_PROGRESS:",
        instead="if True:",
        tests=("tests/simulation/test_cursors.py::test_a_commit_that_lands_late_is_waited_for",),
    ),
    Guard(
        name="number of a cursor's transaction",
        keeps="the database says by its number whether a claim was committed",
        file="tools/postgres/sql/claims.sql",
        text="SELECT pg_xact_status($1::text::xid8)",
        instead="SELECT left('committed', length($1::text) + 9)",
        tests=("tests/integration/test_postgres_claims.py::test_whoever_leaves_without_a_commit_has_taken_nothing",),
        has_database=True,
    ),
    Guard(
        name="sync of a cursor's claim",
        keeps="rows that were claimed are not free again after a failure of their database",
        file="tools/postgres/sql/claims.sql",
        text="WHEN 'off' THEN 'on'",
        instead="WHEN 'off' THEN 'off'",
        tests=("tests/integration/test_postgres_claims.py::test_a_claim_is_durable_and_does_not_stand_open_for_ever",),
        has_database=True,
    ),
    Guard(
        name="database of a cursor's transaction",
        keeps="another database is not asked about a number that it did not give",
        file="tools/postgres/claims.py",
        text="if place is not None and place != _mark(pool):",
        instead="if False:",
        tests=("tests/integration/test_postgres_claims.py::test_another_database_cannot_tell_the_fate_of_a_claim",),
        has_database=True,
    ),
)
