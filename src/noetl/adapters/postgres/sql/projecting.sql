-- Projections: who keeps which shard, and the one statement that writes rows together with their watermark.

-- name: projector_heartbeat
-- One more lease for the process and all that it holds.  A lease that ran out and that nobody took is still its own:
-- whoever takes a shard raises the epoch, and then there is nothing here to renew.
-- The row of this process counts whatever the snapshot of this statement says about it.
WITH here AS (
    INSERT INTO noetl.projector (runtime_id, instance, is_dedicated, leased_until)
    VALUES (:runtime_id::bigint, :instance::text, :is_dedicated::boolean,
            clock_timestamp() + make_interval(secs => :lease_seconds::float8))
    -- Nobody else has this id.
    ON CONFLICT (runtime_id) DO UPDATE SET leased_until = excluded.leased_until
    RETURNING runtime_id
), gone AS (
    DELETE FROM noetl.projector AS p
    WHERE p.leased_until < clock_timestamp() - interval '1 hour' AND p.runtime_id <> :runtime_id::bigint
), renewed AS (
    UPDATE noetl.projection_checkpoint
    SET leased_until = clock_timestamp() + make_interval(secs => :lease_seconds::float8)
    WHERE owner_runtime_id = :runtime_id::bigint
    RETURNING shard_id, epoch, position, ledger_incarnation
), others AS (
    SELECT count(*) FILTER (WHERE is_dedicated) AS dedicated, count(*) FILTER (WHERE NOT is_dedicated) AS inside
    FROM noetl.projector
    WHERE leased_until > clock_timestamp() AND runtime_id <> :runtime_id::bigint
)
SELECT CASE WHEN :is_dedicated::boolean THEN others.dedicated + 1
            WHEN others.dedicated > 0 THEN others.dedicated ELSE others.inside + 1 END AS sharers,
       :is_dedicated::boolean OR others.dedicated = 0 AS is_sharer,
       (SELECT count(*) FROM noetl.execution_shard) AS shards,
       renewed.shard_id, renewed.epoch, renewed.position, renewed.ledger_incarnation::text AS incarnation
FROM here CROSS JOIN others LEFT JOIN renewed ON true
ORDER BY renewed.shard_id

-- name: missing_projections
-- A shard that nobody has ever projected begins with the incarnation of the day.
INSERT INTO noetl.projection_checkpoint (shard_id, ledger_incarnation)
SELECT s.shard_id, l.ledger_incarnation FROM noetl.execution_shard AS s CROSS JOIN noetl.ledger AS l
WHERE NOT EXISTS (SELECT 1 FROM noetl.projection_checkpoint AS c WHERE c.shard_id = s.shard_id)
-- Somebody else found it missing as well.
ON CONFLICT (shard_id) DO NOTHING
RETURNING shard_id

-- name: claim_projections
-- Taking a shard raises its epoch: whatever an earlier owner still tries to write fails on it.  SKIP LOCKED: two that
-- look at once take different ones.
WITH free AS MATERIALIZED (
    SELECT c.shard_id FROM noetl.projection_checkpoint AS c
    WHERE (c.owner_runtime_id IS NULL OR c.leased_until < clock_timestamp() OR :by_force::boolean)
      AND c.owner_runtime_id IS DISTINCT FROM :runtime_id::bigint
    ORDER BY c.shard_id
    LIMIT :rows::integer
    FOR UPDATE SKIP LOCKED
)
UPDATE noetl.projection_checkpoint AS c
SET epoch = c.epoch + 1, owner_runtime_id = :runtime_id::bigint,
    leased_until = clock_timestamp() + make_interval(secs => :lease_seconds::float8),
    ledger_incarnation = coalesce(c.ledger_incarnation, (SELECT l.ledger_incarnation FROM noetl.ledger AS l))
FROM free
WHERE c.shard_id = free.shard_id
RETURNING c.shard_id, c.epoch, c.position, c.ledger_incarnation::text AS incarnation

-- name: let_projections_go
UPDATE noetl.projection_checkpoint AS c
SET owner_runtime_id = NULL, leased_until = NULL
FROM unnest(:shards::integer[], :epochs::bigint[]) AS t(shard_id, epoch)
WHERE c.shard_id = t.shard_id AND c.epoch = t.epoch
RETURNING c.shard_id

-- name: projector_leaves
WITH gone AS (
    DELETE FROM noetl.projector WHERE runtime_id = :runtime_id::bigint
)
UPDATE noetl.projection_checkpoint SET owner_runtime_id = NULL, leased_until = NULL
WHERE owner_runtime_id = :runtime_id::bigint
RETURNING shard_id

-- name: project
-- Rows and watermark in one commit.  Refused without the epoch (another owner), from another position (a commit whose
-- outcome was not known), or for another incarnation (a restored database hands its positions out again).
-- The rows of shards are locked in shard order: an owner and the one before it cannot deadlock.
WITH mine AS MATERIALIZED (
    SELECT t.shard_id, t.position, t.last_event_id, t.ingest_time, t.waited_ms
    FROM unnest(:shards::integer[], :epochs::bigint[], :seen::bigint[], :positions::bigint[], :event_ids::bigint[],
                :ingest_times::text[], :waited_ms::integer[])
         AS t(shard_id, epoch, seen, position, last_event_id, ingest_time, waited_ms)
    CROSS JOIN LATERAL (
        SELECT c.shard_id FROM noetl.projection_checkpoint AS c
        WHERE c.shard_id = t.shard_id AND c.epoch = t.epoch AND c.position = t.seen
          AND c.ledger_incarnation = :incarnation::uuid
        FOR UPDATE) AS held
    WHERE EXISTS (SELECT 1 FROM noetl.ledger AS l WHERE l.ledger_incarnation = :incarnation::uuid)
), moved AS (
    UPDATE noetl.projection_checkpoint AS c
    SET position = mine.position, last_projected_event_id = mine.last_event_id,
        last_projected_at = clock_timestamp(),
        lag_ms = CASE WHEN mine.ingest_time IS NULL THEN mine.waited_ms
                      ELSE extract(epoch FROM clock_timestamp() - mine.ingest_time::timestamptz) * 1000 END
    FROM mine
    WHERE c.shard_id = mine.shard_id
    RETURNING c.shard_id, c.lag_ms
), row_out AS (
    INSERT INTO noetl.execution (
        execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, status, started_at, ended_at,
        last_step, last_event_id, applied_position, parent_execution_id, version, state, quarantine, retry_of,
        last_projected_event_id)
    SELECT t.execution_id, t.tenant_id, t.organization_id, t.shard_id, t.path, t.playbook_digest, t.status,
           t.started_at::timestamptz, t.ended_at::timestamptz, t.last_step, t.last_event_id, t.applied_position,
           t.parent_execution_id, t.version, t.state::json, t.quarantine::json, t.retry_of, t.last_event_id
    FROM unnest(:execution_ids::bigint[], :tenants::text[], :organizations::text[], :row_shards::integer[],
                :paths::text[], :digests::text[], :statuses::text[], :started::text[], :ended::text[],
                :last_steps::text[], :last_events::bigint[], :applied::bigint[], :parents::bigint[],
                :versions::bigint[], :states::text[], :quarantines::text[], :retries::bigint[])
         AS t(execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, status, started_at, ended_at,
              last_step, last_event_id, applied_position, parent_execution_id, version, state, quarantine, retry_of)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
    -- Only forward: a row never goes back to an older position.  One without a document is all that could be told
    -- about an execution of which nothing can be read: what is known of it stays.
    ON CONFLICT (execution_id) DO UPDATE
    SET status = CASE WHEN excluded.state IS NULL THEN noetl.execution.status ELSE excluded.status END,
        path = CASE WHEN excluded.state IS NULL THEN noetl.execution.path ELSE excluded.path END,
        started_at = CASE WHEN excluded.state IS NULL THEN noetl.execution.started_at ELSE excluded.started_at END,
        ended_at = coalesce(excluded.ended_at, noetl.execution.ended_at),
        last_step = coalesce(excluded.last_step, noetl.execution.last_step),
        last_event_id = excluded.last_event_id, applied_position = excluded.applied_position,
        version = greatest(excluded.version, noetl.execution.version),
        retry_of = coalesce(excluded.retry_of, noetl.execution.retry_of),
        state = coalesce(excluded.state, noetl.execution.state), quarantine = excluded.quarantine,
        last_projected_event_id = excluded.last_projected_event_id
    WHERE noetl.execution.applied_position <= excluded.applied_position
)
SELECT moved.shard_id, moved.lag_ms FROM moved

-- name: projection_progress
SELECT s.shard_id, s.next_position - 1 AS head, l.ledger_incarnation::text AS ledger_incarnation,
       coalesce(c.position, 0) AS position, c.ledger_incarnation::text AS incarnation, coalesce(c.epoch, 0) AS epoch,
       c.owner_runtime_id AS owner, coalesce(c.leased_until > clock_timestamp(), false) AS is_held, c.lag_ms
FROM noetl.execution_shard AS s CROSS JOIN noetl.ledger AS l
LEFT JOIN noetl.projection_checkpoint AS c ON c.shard_id = s.shard_id
ORDER BY s.shard_id

-- name: rebuild_projection
-- Everything of a shard is forgotten: rows of a ledger that is gone would be lies, and what the ledger still has comes
-- back by folding.  So many rows at a time; the watermark begins anew with the last of them.
WITH mine AS MATERIALIZED (
    SELECT c.shard_id FROM noetl.projection_checkpoint AS c
    WHERE c.shard_id = :shard_id::integer AND c.epoch = :epoch::bigint
    -- Nobody takes the shard while its rows are deleted.
    FOR UPDATE
), gone AS (
    DELETE FROM noetl.execution WHERE execution_id IN (
        SELECT e.execution_id FROM noetl.execution AS e
        WHERE e.shard_id IN (SELECT mine.shard_id FROM mine)
        LIMIT :rows::integer)
    RETURNING execution_id
), begun AS (
    UPDATE noetl.projection_checkpoint AS c
    SET position = 0, last_projected_event_id = 0, ledger_incarnation = :incarnation::uuid, lag_ms = NULL
    WHERE c.shard_id IN (SELECT mine.shard_id FROM mine) AND (SELECT count(*) FROM gone) < :rows::integer
    RETURNING c.shard_id, c.epoch, c.position, c.ledger_incarnation::text AS incarnation
)
SELECT begun.shard_id, begun.epoch, begun.position, begun.incarnation
FROM mine LEFT JOIN begun ON begun.shard_id = mine.shard_id

-- name: quarantined
SELECT execution_id FROM noetl.execution
WHERE quarantine IS NOT NULL AND shard_id = ANY (:shards::integer[])
ORDER BY execution_id
LIMIT :rows::integer

-- name: heal_projection
UPDATE noetl.execution
SET status = :status::text, path = :path::text, playbook_digest = :digest::text,
    started_at = :started_at::text::timestamptz, ended_at = :ended_at::text::timestamptz, last_step = :last_step::text,
    last_event_id = :last_event_id::bigint, applied_position = :applied_position::bigint, version = :version::bigint,
    state = :state::text::json, quarantine = NULL, last_projected_event_id = :last_event_id::bigint
WHERE execution_id = :execution_id::bigint AND quarantine IS NOT NULL AND applied_position <= :applied_position::bigint
RETURNING execution_id

-- name: tail
-- The tails of several shards.  A partition has an index by shard and position: each of them is asked for the next
-- events of a shard, and no more are read than are wanted.
SELECT e.execution_id, e.position, e.shard_id, e.event_id, e.tenant_id, e.organization_id, e.stream_version,
       e.event_type, e.schema_version, e.event_time, e.ingest_time, e.producer, e.causation_id, e.correlation_id,
       e.idempotency_key, e.transition_key, e.command_id, e.stage_id, e.frame_id, e.parent_event_id,
       e.parent_execution_id, e.payload_ref, e.result, e.writes, e.meta, e.checksum
FROM unnest(:shards::integer[], :after::bigint[]) AS t(shard_id, position)
CROSS JOIN LATERAL (
    SELECT o.execution_id, o.position, o.shard_id, o.event_id, o.tenant_id, o.organization_id, o.stream_version,
           o.event_type, o.schema_version, o.event_time, o.ingest_time, o.producer, o.causation_id, o.correlation_id,
           o.idempotency_key, o.transition_key, o.command_id, o.stage_id, o.frame_id, o.parent_event_id,
           o.parent_execution_id, o.payload_ref, o.result, o.writes, o.meta, o.checksum
    FROM noetl.event AS o
    WHERE o.shard_id = t.shard_id AND o.position > t.position
    ORDER BY o.position
    LIMIT :rows::integer) AS e

-- name: shown_execution
SELECT e.execution_id, e.tenant_id, e.organization_id, e.shard_id, e.path, e.playbook_digest, e.status, e.started_at,
       e.ended_at, e.last_step, e.last_event_id, e.applied_position, e.parent_execution_id, e.version,
       e.retry_of, e.state::text AS state, e.quarantine::text AS quarantine, coalesce(c.position, 0) AS watermark
FROM noetl.execution AS e
LEFT JOIN noetl.projection_checkpoint AS c ON c.shard_id = e.shard_id
WHERE e.execution_id = :execution_id::bigint AND e.tenant_id = :tenant_id::text
  AND e.organization_id = :organization_id::text

-- name: is_recorded
SELECT 1 FROM noetl.stream AS s
WHERE s.execution_id = :execution_id::bigint AND s.tenant_id = :tenant_id::text
  AND s.organization_id = :organization_id::text

-- name: shown_positions
SELECT e.execution_id, greatest(e.applied_position, coalesce(c.position, 0)) AS position, e.status
FROM unnest(:execution_ids::bigint[]) AS t(execution_id)
CROSS JOIN LATERAL (
    SELECT o.execution_id, o.shard_id, o.applied_position, o.status FROM noetl.execution AS o
    WHERE o.execution_id = t.execution_id LIMIT 1) AS e
LEFT JOIN noetl.projection_checkpoint AS c ON c.shard_id = e.shard_id
