-- name: ledger_heads
-- Positions are given in the order of commits, so whatever is at or below these is there and stays as it is.
SELECT l.ledger_incarnation::text AS ledger_incarnation, s.shard_id, s.next_position - 1 AS last_position
FROM noetl_views.shards AS s CROSS JOIN noetl_views.ledger AS l
ORDER BY s.shard_id

-- name: shard_head
SELECT next_position - 1 AS last_position FROM noetl_views.shards WHERE shard_id = :shard_id::integer

-- name: ledger_window
SELECT shard_id, position, execution_id, event_id, tenant_id, organization_id, stream_id, stream_version, aggregate_type,
       aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer, causation_id,
       correlation_id, transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id,
       payload_ref::text AS payload_ref, result::text AS result, writes::text AS writes, meta::text AS meta
FROM noetl_views.events
WHERE shard_id = :shard_id::integer AND position > :after_position::bigint AND position <= :until_position::bigint
  AND tenant_id = :tenant_id::text AND organization_id = :organization_id::text
  AND (:event_types::text[] IS NULL OR event_type = ANY (:event_types::text[]))
ORDER BY position
LIMIT :rows::integer

-- name: ledger_execution_window
-- The same of one execution, which is in one partition of the table.
SELECT shard_id, position, execution_id, event_id, tenant_id, organization_id, stream_id, stream_version, aggregate_type,
       aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer, causation_id,
       correlation_id, transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id,
       payload_ref::text AS payload_ref, result::text AS result, writes::text AS writes, meta::text AS meta
FROM noetl_views.events
WHERE execution_id = :execution_id::bigint AND shard_id = :shard_id::integer
  AND position > :after_position::bigint AND position <= :until_position::bigint
  AND tenant_id = :tenant_id::text AND organization_id = :organization_id::text
  AND (:event_types::text[] IS NULL OR event_type = ANY (:event_types::text[]))
ORDER BY position
LIMIT :rows::integer

-- name: step_result
-- The result of a step's last run, or of its loop: what is evaluated for a step has a longer name.
SELECT uri, sha256, media_type, bytes, row_count, schema_digest, store_tier
FROM noetl_views.result_refs
WHERE execution_id = :execution_id::bigint AND tenant_id = :tenant_id::text
  AND organization_id = :organization_id::text AND step = :step::text AND event_type = 'command.completed'
  AND command_id ~ '#[0-9]+(/seal)?$'
ORDER BY position DESC
LIMIT 1
