-- name: transition
SELECT execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_version, event_type,
       schema_version, event_time, ingest_time, producer, causation_id, correlation_id, idempotency_key,
       transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id, payload_ref, result,
       writes, meta, checksum
FROM noetl.event
WHERE execution_id = :execution_id::bigint AND transition_key = :transition_key::text

-- name: of_stage
SELECT execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_version, event_type,
       schema_version, event_time, ingest_time, producer, causation_id, correlation_id, idempotency_key,
       transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id, payload_ref, result,
       writes, meta, checksum
FROM noetl.event
WHERE execution_id = :execution_id::bigint AND position > :after_position::bigint AND stage_id = :stage_id::text
  AND event_type = ANY (:kinds::text[])
ORDER BY position
LIMIT :rows::integer

-- name: walk
-- Back from some results: to the one that led to each, and to those that it was made of.  A result is reached in many
-- ways, so the walk is bounded by how deep it goes and by how many visits it makes, not only by what it shows.  The
-- visits come in the order of their depth and end the walk early: nothing behind the last one is looked at.
-- Results of others do not exist: a visit to one of them leads nowhere.
WITH RECURSIVE walk AS (
    SELECT t.ref_id, 0 AS depth FROM unnest(:ref_ids::bigint[]) AS t(ref_id)
    UNION
    SELECT next.ref_id, w.depth + 1
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT e.parent_event_id, e.meta
        FROM noetl.event AS e
        WHERE e.event_id = w.ref_id AND e.result IS NOT NULL AND e.tenant_id = :tenant_id::text
          AND e.organization_id = :organization_id::text LIMIT 1) AS r
    CROSS JOIN LATERAL (
        SELECT r.parent_event_id AS ref_id
        UNION ALL
        SELECT given.ref_id
        FROM json_to_recordset(
            CASE WHEN strpos(r.meta::text, '"inputs":') > 0
                 THEN replace(r.meta::text, '\u0000', '\u0001')::json->'inputs' END) AS given(ref_id bigint)) AS next
    WHERE w.depth < :depth_max::integer AND next.ref_id IS NOT NULL
), visited AS MATERIALIZED (
    SELECT w.ref_id, w.depth FROM walk AS w LIMIT :visits_max::integer
), reached AS (
    SELECT v.ref_id, min(v.depth) AS depth, (SELECT count(*) FROM visited) AS visits FROM visited AS v GROUP BY v.ref_id
)
SELECT reached.depth, reached.visits, r.ref_id, r.execution_id, r.position, r.tenant_id, r.organization_id,
       r.event_type, r.status, r.uri, r.sha256, r.created_at, r.step, r.task, r.command_id, r.stage_id, r.frame_id,
       r.kind, r.media_type, r.bytes, r.row_count, r.schema_digest, r.store_tier, r.physical_address, r.correlation,
       r.auth_reference, r.parent_ref_id, e.meta
FROM reached
CROSS JOIN LATERAL (
    SELECT o.ref_id, o.execution_id, o.position, o.tenant_id, o.organization_id, o.event_type, o.status, o.uri,
           o.sha256, o.created_at, o.step, o.task, o.command_id, o.stage_id, o.frame_id, o.kind, o.media_type, o.bytes,
           o.row_count, o.schema_digest, o.store_tier, o.physical_address, o.correlation, o.auth_reference,
           o.parent_ref_id
    FROM noetl.result_ref AS o
    WHERE o.ref_id = reached.ref_id AND o.tenant_id = :tenant_id::text
      AND o.organization_id = :organization_id::text LIMIT 1) AS r
LEFT JOIN LATERAL (
    SELECT o.meta FROM noetl.event AS o
    WHERE o.execution_id = r.execution_id AND o.position = r.position) AS e ON true
ORDER BY reached.depth, r.ref_id DESC
LIMIT :rows::integer

-- name: frames
-- The frames of some loops: how many have a result, and the first of them by their place in the ledger.
SELECT stage.execution_id AS of_execution, stage.stage_id AS of_stage,
       (SELECT count(*) FROM noetl.event AS n
        WHERE n.execution_id = stage.execution_id AND n.stage_id = stage.stage_id
          AND n.event_type IN ('frame.committed', 'frame.failed')) AS total,
       0 AS depth, r.ref_id, r.execution_id, r.position, r.tenant_id, r.organization_id, r.event_type, r.status, r.uri,
       r.sha256, r.created_at, r.step, r.task, r.command_id, r.stage_id, r.frame_id, r.kind, r.media_type, r.bytes,
       r.row_count, r.schema_digest, r.store_tier, r.physical_address, r.correlation, r.auth_reference,
       r.parent_ref_id, r.meta
FROM unnest(:executions::bigint[], :stages::text[]) AS stage(execution_id, stage_id)
CROSS JOIN LATERAL (
    SELECT o.ref_id, o.execution_id, o.position, o.tenant_id, o.organization_id, o.event_type, o.status, o.uri,
           o.sha256, o.created_at, o.step, o.task, o.command_id, o.stage_id, o.frame_id, o.kind, o.media_type, o.bytes,
           o.row_count, o.schema_digest, o.store_tier, o.physical_address, o.correlation, o.auth_reference,
           o.parent_ref_id, e.meta
    FROM noetl.event AS e
    JOIN noetl.result_ref AS o ON o.execution_id = e.execution_id AND o.position = e.position
    WHERE e.execution_id = stage.execution_id AND e.stage_id = stage.stage_id
      AND e.event_type IN ('frame.committed', 'frame.failed')
      AND o.tenant_id = :tenant_id::text AND o.organization_id = :organization_id::text
    ORDER BY e.position
    LIMIT :rows::integer) AS r
ORDER BY stage.execution_id, stage.stage_id, r.position
