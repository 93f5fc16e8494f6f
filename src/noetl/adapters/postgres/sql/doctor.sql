-- What is looked at when something may be wrong.  Nothing here writes.

-- name: dead_runtimes
-- A process that left has no time of life at all; one that only fell silent has one that is over.
SELECT runtime_id, instance, kind, last_id,
       extract(epoch FROM clock_timestamp() - alive_until)::float8 AS silent_seconds
FROM noetl.runtime
WHERE alive_until > to_timestamp(0) AND alive_until < clock_timestamp() AND leased_until < clock_timestamp()
ORDER BY runtime_id
LIMIT :rows::integer

-- name: held_by_the_dead
SELECT c.execution_id, c.command_id, c.shard_id, c.session_id
FROM noetl.command AS c
WHERE c.session_id IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM noetl.session AS s
    JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
    WHERE s.session_id = c.session_id AND s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp())
ORDER BY c.execution_id, c.command_id
LIMIT :rows::integer

-- name: queued_after_the_end
SELECT c.execution_id, c.command_id, c.shard_id, c.session_id
FROM noetl.command AS c
JOIN noetl.stream AS st ON st.execution_id = c.execution_id
WHERE st.closed
ORDER BY c.execution_id, c.command_id
LIMIT :rows::integer

-- name: unprojected
SELECT s.shard_id, extract(epoch FROM clock_timestamp() - first.ingest_time)::float8 * 1000 AS behind_ms,
       coalesce(c.leased_until > clock_timestamp(), false) AS is_held, c.owner_runtime_id AS owner
FROM noetl.execution_shard AS s
LEFT JOIN noetl.projection_checkpoint AS c ON c.shard_id = s.shard_id
CROSS JOIN LATERAL (
    SELECT e.ingest_time FROM noetl.event AS e
    WHERE e.shard_id = s.shard_id AND e.position > coalesce(c.position, 0)
    ORDER BY e.position
    LIMIT 1) AS first
WHERE s.next_position - 1 > coalesce(c.position, 0)
ORDER BY s.shard_id

-- name: waiting_pools
-- By what a session must be able to do: a pool whose workers lack a tool serves the others all the same.
SELECT w.pool, w.tool_kind AS kinds, w.commands, w.waiting_seconds, EXISTS (
    SELECT 1 FROM noetl.session AS s
    JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
    WHERE s.pool = w.pool AND s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp()
      AND (s.kinds IS NULL OR s.kinds @> string_to_array(w.tool_kind, '+'))) AS is_served
FROM (
    SELECT c.pool, c.tool_kind, count(*)::bigint AS commands,
           extract(epoch FROM clock_timestamp() - min(c.available_at))::float8 AS waiting_seconds
    FROM noetl.command AS c
    WHERE c.session_id IS NULL AND c.available_at <= clock_timestamp()
    GROUP BY c.pool, c.tool_kind) AS w
WHERE w.waiting_seconds >= :seconds::float8
ORDER BY w.pool, w.tool_kind

-- name: frame_depths
SELECT tenant_id, organization_id,
       CASE WHEN 'cursor' = ANY (string_to_array(tool_kind, '+')) THEN 'cursor' ELSE 'collection' END AS stage_kind,
       count(*) FILTER (WHERE session_id IS NULL) AS waiting, count(session_id) AS held
FROM noetl.command
WHERE 'frame' = ANY (string_to_array(tool_kind, '+'))
GROUP BY tenant_id, organization_id, stage_kind
ORDER BY tenant_id, organization_id, stage_kind

-- name: queue_depths
SELECT pool, count(*) FILTER (WHERE session_id IS NULL)::bigint AS waiting,
       count(*) FILTER (WHERE session_id IS NOT NULL)::bigint AS held
FROM noetl.command
GROUP BY pool
ORDER BY pool

-- name: timers_due
SELECT count(*)::bigint AS due FROM noetl.timer WHERE due_at <= clock_timestamp()

-- name: connections
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')::bigint AS used,
       (pg_catalog.current_setting('max_connections')::integer
        - pg_catalog.current_setting('superuser_reserved_connections')::integer)::bigint AS total

-- name: database_clock
SELECT extract(epoch FROM clock_timestamp())::float8 AS now
