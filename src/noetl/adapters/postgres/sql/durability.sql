-- Snapshots, checkpoints, roles, partitions: what recovery needs.

-- name: newest_snapshots
SELECT execution_id, position, tenant_id, organization_id, shard_id, stream_version, last_event_id, code_version,
       upcaster_digest, payload_root, checksum, state
FROM noetl.projection_snapshot
WHERE execution_id = :execution_id::bigint
ORDER BY position DESC
LIMIT :rows::integer

-- name: save_snapshots
-- One of each execution.  What is older than the last of those that are there goes: with the new one that leaves two.
WITH given AS (
    SELECT t.*
    FROM unnest(
        :executions::bigint[], :positions::bigint[], :tenants::text[], :organizations::text[], :shards::integer[],
        :versions::bigint[], :events::bigint[], :code_versions::text[], :upcasters::text[], :roots::text[],
        :checksums::text[], :states::bytea[])
        AS t(execution_id, position, tenant_id, organization_id, shard_id, stream_version, last_event_id, code_version,
             upcaster_digest, payload_root, checksum, state)
), gone AS (
    DELETE FROM noetl.projection_snapshot AS old
    USING given
    WHERE old.execution_id = given.execution_id
      AND old.position < (
          SELECT max(o.position) FROM noetl.projection_snapshot AS o
          WHERE o.execution_id = given.execution_id AND o.position < given.position)
)
INSERT INTO noetl.projection_snapshot (
    execution_id, position, tenant_id, organization_id, shard_id, stream_version, last_event_id, code_version,
    upcaster_digest, payload_root, checksum, state)
SELECT execution_id, position, tenant_id, organization_id, shard_id, stream_version, last_event_id, code_version,
       upcaster_digest, payload_root, checksum, state
FROM given
-- Two processes may fold the same events: both have the same state, unless one of them is of another release, whose
-- snapshot the next one of ours replaces.
ON CONFLICT (execution_id, position) DO UPDATE
SET code_version = excluded.code_version, upcaster_digest = excluded.upcaster_digest,
    payload_root = excluded.payload_root, checksum = excluded.checksum, state = excluded.state,
    created_at = clock_timestamp()
WHERE (noetl.projection_snapshot.code_version, noetl.projection_snapshot.upcaster_digest)
    IS DISTINCT FROM (excluded.code_version, excluded.upcaster_digest)

-- name: hold_roles
-- Renews what is ours and takes what nobody has.  A lease that had run out is a new one even for its last holder: what
-- it did meanwhile, somebody else may have done too.
INSERT INTO noetl.runtime_role AS r (role, runtime_id, epoch, leased_until)
SELECT t.role, :runtime_id::bigint, 1, clock_timestamp() + make_interval(secs => :lease_seconds::float8)
FROM unnest(:roles::text[]) AS t(role)
ORDER BY t.role
-- One row per role; a live lease of somebody else is never touched.
ON CONFLICT (role) DO UPDATE
SET runtime_id = excluded.runtime_id, leased_until = excluded.leased_until,
    epoch = r.epoch + CASE WHEN r.runtime_id = excluded.runtime_id AND r.leased_until >= clock_timestamp() THEN 0 ELSE 1 END
WHERE r.runtime_id = excluded.runtime_id OR r.leased_until < clock_timestamp()
RETURNING r.role, r.runtime_id, r.epoch

-- name: release_roles
UPDATE noetl.runtime_role AS r
SET runtime_id = NULL, leased_until = '-infinity'
FROM unnest(:roles::text[], :runtimes::bigint[], :epochs::bigint[]) AS t(role, runtime_id, epoch)
WHERE r.role = t.role AND r.runtime_id = t.runtime_id AND r.epoch = t.epoch
RETURNING r.role

-- name: role_holders
SELECT role, runtime_id, epoch,
       greatest(0, extract(epoch FROM leased_until - clock_timestamp()))::float8 AS seconds_left
FROM noetl.runtime_role
ORDER BY role

-- name: barriers
-- What a projector remembers of another life of the ledger means nothing: such a shard counts as not applied at all.
SELECT s.shard_id, coalesce(applied.position, 0) AS applied_position,
       coalesce(applied.last_projected_event_id, 0) AS last_event_id,
       coalesce(last.epoch, 0) AS epoch, coalesce(last.position, 0) AS position,
       extract(epoch FROM clock_timestamp() - uncovered.ingest_time)::float8 * 1000 AS uncovered_ms,
       coalesce(uncovered.position <= applied.position, false) AS is_due
FROM noetl.execution_shard AS s
CROSS JOIN noetl.ledger AS l
LEFT JOIN noetl.projection_checkpoint AS applied
    ON applied.shard_id = s.shard_id AND applied.ledger_incarnation = l.ledger_incarnation
LEFT JOIN LATERAL (
    SELECT c.epoch, c.position FROM noetl.checkpoint AS c
    WHERE c.execution_id = s.shard_id + 1
    ORDER BY c.epoch DESC
    LIMIT 1) AS last ON true
LEFT JOIN LATERAL (
    SELECT e.position, e.ingest_time FROM noetl.event AS e
    WHERE e.shard_id = s.shard_id AND e.position > coalesce(last.position, 0) AND e.execution_id >= :first_id::bigint
    ORDER BY e.position
    LIMIT 1) AS uncovered ON s.next_position - 1 > coalesce(last.position, 0)
ORDER BY s.shard_id

-- name: commit_checkpoints
-- Rows of shards are locked in their order, as by every writer: no deadlock.  One that somebody holds is left out, for
-- waiting would hold up the others.  A checkpoint of the same epoch that commits first makes this one a unique violation,
-- and the counters go back with it.  Nobody has to decide a checkpoint: where everything was decided, everything still is.
WITH role AS MATERIALIZED (
    SELECT 1 AS one FROM noetl.runtime_role
    WHERE role = :role::text AND runtime_id = :runtime_id::bigint AND epoch = :role_epoch::bigint
), checkpoint_in AS MATERIALIZED (
    SELECT t.*
    FROM json_to_recordset(:events::json) AS t(
        checkpoint_epoch bigint, applied_position bigint, applied_event_id bigint, checksum bytea, shard_id integer,
        execution_id bigint, event_id bigint, tenant_id text, organization_id text, stream_id text,
        aggregate_type text, aggregate_id text, event_type text, schema_name text, schema_version integer,
        event_time timestamptz, producer text, correlation_id text, transition_key text, meta json)
), shard AS MATERIALIZED (
    SELECT s.shard_id, s.next_position, s.decided_position
    FROM unnest(:shards::integer[]) AS t(shard_id)
    CROSS JOIN LATERAL (
        SELECT o.shard_id, o.next_position, o.decided_position FROM noetl.execution_shard AS o
        WHERE o.shard_id = t.shard_id AND EXISTS (SELECT 1 FROM role) FOR UPDATE SKIP LOCKED) AS s
), event_out AS (
    INSERT INTO noetl.event (
        execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version,
        aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer,
        correlation_id, transition_key, meta, checksum)
    SELECT c.execution_id, shard.next_position, c.shard_id, c.event_id, c.tenant_id, c.organization_id, c.stream_id,
        c.checkpoint_epoch, c.aggregate_type, c.aggregate_id, c.event_type, c.schema_name, c.schema_version,
        c.event_time, clock_timestamp(), c.producer, c.correlation_id, c.transition_key, c.meta, c.checksum
    FROM checkpoint_in AS c JOIN shard ON shard.shard_id = c.shard_id
), counter AS (
    UPDATE noetl.execution_shard AS s
    SET next_position = s.next_position + 1,
        decided_position = s.decided_position + CASE WHEN s.decided_position = s.next_position - 1 THEN 1 ELSE 0 END
    FROM shard
    WHERE s.shard_id = shard.shard_id
), stream AS (
    INSERT INTO noetl.stream (execution_id, shard_id, tenant_id, organization_id, version, closed)
    SELECT c.execution_id, c.shard_id, c.tenant_id, c.organization_id, c.checkpoint_epoch, false
    FROM checkpoint_in AS c JOIN shard ON shard.shard_id = c.shard_id
    -- The reserved execution is never started and never ends.
    ON CONFLICT (execution_id) DO UPDATE SET version = excluded.version
), checkpoint_out AS (
    INSERT INTO noetl.checkpoint (execution_id, shard_id, epoch, position, last_event_id)
    SELECT c.execution_id, c.shard_id, c.checkpoint_epoch, c.applied_position, c.applied_event_id
    FROM checkpoint_in AS c JOIN shard ON shard.shard_id = c.shard_id
), too_old AS (
    -- The newest says where to begin.  All of them are events; these rows need not grow with the ledger.  A few at a
    -- time: the rows of shards are held meanwhile.
    DELETE FROM noetl.checkpoint AS old
    USING (
        SELECT o.execution_id, o.epoch
        FROM checkpoint_in AS c JOIN shard ON shard.shard_id = c.shard_id
        CROSS JOIN LATERAL (
            SELECT k.execution_id, k.epoch FROM noetl.checkpoint AS k
            WHERE k.execution_id = c.execution_id AND k.epoch <= c.checkpoint_epoch - :rows_kept::bigint
            ORDER BY k.epoch
            LIMIT 10) AS o) AS found
    WHERE old.execution_id = found.execution_id AND old.epoch = found.epoch
)
SELECT shard_id FROM shard

-- name: partitions
-- Quarters of the ledger, and whether one of their executions is open.
SELECT part.relname::text AS name,
       EXISTS (
           SELECT 1 FROM noetl.stream AS st
           WHERE NOT st.closed AND st.execution_id >= bounds.first_id AND st.execution_id < bounds.after_id) AS has_open
FROM pg_catalog.pg_inherits AS i
JOIN pg_catalog.pg_class AS part ON part.oid = i.inhrelid
JOIN unnest(:names::text[], :first_ids::bigint[], :after_ids::bigint[]) AS bounds(name, first_id, after_id)
    ON bounds.name = part.relname
WHERE i.inhparent = 'noetl.event'::pg_catalog.regclass
ORDER BY 1

-- name: partition_names
SELECT part.relname::text AS name
FROM pg_catalog.pg_inherits AS i
JOIN pg_catalog.pg_class AS part ON part.oid = i.inhrelid
WHERE i.inhparent = 'noetl.event'::pg_catalog.regclass
ORDER BY part.relname

-- name: drop_ended_commands
-- A stream that is closed stays closed: no row of it can be needed again.
DELETE FROM noetl.command AS c
USING noetl.stream AS st
WHERE st.execution_id = c.execution_id AND st.closed
RETURNING c.execution_id
