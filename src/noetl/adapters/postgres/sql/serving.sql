-- Processes on one ledger: who is alive, who owns which shard, whose sessions hold what.  Only this clock decides.

-- name: lease_node
-- The lowest node number that is free or whose lease ran out.  `last_id` keeps ids rising when a number is reused on
-- a machine whose clock stepped back.
WITH free AS (
    SELECT n.number
    FROM generate_series(0, 1023) AS n(number)
    LEFT JOIN noetl.runtime AS r ON r.node_number = n.number
    WHERE r.node_number IS NULL OR r.leased_until < clock_timestamp()
    ORDER BY n.number
    LIMIT 1
), taken AS (
    INSERT INTO noetl.runtime (
        runtime_id, node_number, instance, kind, leased_until, alive_until, seat, url, version, started_at, heartbeat_at)
    SELECT coalesce((SELECT max(runtime_id) FROM noetl.runtime), 0) + 1, free.number, :instance::text, :kind::text,
           clock_timestamp() + make_interval(secs => :node_seconds::float8),
           clock_timestamp() + make_interval(secs => :lease_seconds::float8), :seat::text, :url::text, :version::text,
           clock_timestamp(), clock_timestamp()
    FROM free
    -- A number whose lease ran out is taken over; a live one is never touched.
    ON CONFLICT (node_number) DO UPDATE
    SET runtime_id = excluded.runtime_id, instance = excluded.instance, kind = excluded.kind,
        leased_until = excluded.leased_until, alive_until = excluded.alive_until, seat = excluded.seat,
        url = excluded.url, version = excluded.version, started_at = excluded.started_at,
        heartbeat_at = excluded.heartbeat_at
    WHERE noetl.runtime.leased_until < clock_timestamp()
    RETURNING runtime_id, node_number, last_id
)
SELECT runtime_id, node_number, last_id FROM taken

-- name: take_seat
-- The lock of a seat is held by one process at a time: the others that sat there are dead, whatever their lease says.
UPDATE noetl.runtime SET alive_until = to_timestamp(0)
WHERE seat = :seat::text AND runtime_id <> :runtime_id::bigint AND alive_until > clock_timestamp()
RETURNING runtime_id

-- name: renew_node
UPDATE noetl.runtime AS r
SET leased_until = clock_timestamp() + make_interval(secs => :node_seconds::float8), last_id = :last_id::bigint,
    alive_until = clock_timestamp() + make_interval(secs => :lease_seconds::float8), heartbeat_at = clock_timestamp()
WHERE r.runtime_id = :runtime_id::bigint
RETURNING (
    SELECT count(*) FROM noetl.runtime AS o
    WHERE o.runtime_id <> :runtime_id::bigint AND o.kind = ANY (:kinds::text[]) AND o.alive_until > clock_timestamp()
) + 1 AS servers

-- name: leave_node
-- What it owned is free at once.
WITH gone AS (
    DELETE FROM noetl.session WHERE runtime_id = :runtime_id::bigint RETURNING session_id
), released AS (
    UPDATE noetl.command SET session_id = NULL, stop = NULL
    WHERE session_id = ANY (ARRAY(SELECT gone.session_id FROM gone))
), let_go AS (
    UPDATE noetl.execution_shard SET owner_runtime_id = NULL, owner_instance = NULL, updated_at = clock_timestamp()
    WHERE owner_runtime_id = :runtime_id::bigint
)
UPDATE noetl.runtime
SET leased_until = clock_timestamp(), alive_until = to_timestamp(0), last_id = :last_id::bigint
WHERE runtime_id = :runtime_id::bigint
RETURNING runtime_id

-- name: runtimes
SELECT runtime_id, node_number, instance, kind, url, version, started_at, heartbeat_at,
       extract(epoch FROM alive_until - clock_timestamp())::float8 AS lease_seconds
FROM noetl.runtime
WHERE leased_until > clock_timestamp() OR heartbeat_at > clock_timestamp() - interval '1 hour'
ORDER BY runtime_id DESC

-- name: claim_shards
-- Those that nobody owns, or whose owner is silent for longer than its lease.  Of two claimers each takes others: what
-- somebody holds a lock on is left for the next look.
WITH free AS MATERIALIZED (
    SELECT s.shard_id
    FROM noetl.execution_shard AS s
    WHERE NOT EXISTS (
        SELECT 1 FROM noetl.runtime AS r
        WHERE r.runtime_id = s.owner_runtime_id AND r.alive_until > clock_timestamp())
    ORDER BY s.shard_id
    LIMIT :shards::integer
    FOR UPDATE OF s SKIP LOCKED
)
UPDATE noetl.execution_shard AS s
SET epoch = s.epoch + 1, owner_runtime_id = :runtime_id::bigint,
    owner_instance = (SELECT r.instance FROM noetl.runtime AS r WHERE r.runtime_id = :runtime_id::bigint),
    updated_at = clock_timestamp()
WHERE s.shard_id = ANY (ARRAY(SELECT free.shard_id FROM free))
RETURNING s.shard_id, s.next_position, s.decided_position, s.epoch

-- name: hand_over_shards
WITH given AS MATERIALIZED (
    SELECT s.shard_id FROM noetl.execution_shard AS s
    WHERE s.shard_id = ANY (:shards::integer[]) AND s.owner_runtime_id = :runtime_id::bigint
    ORDER BY s.shard_id
    FOR UPDATE SKIP LOCKED
)
UPDATE noetl.execution_shard
SET owner_runtime_id = NULL, owner_instance = NULL, updated_at = clock_timestamp()
WHERE shard_id = ANY (ARRAY(SELECT given.shard_id FROM given))
RETURNING shard_id

-- name: look_at_shards
SELECT s.shard_id, s.next_position, s.decided_position, s.epoch, s.owner_runtime_id, s.owner_instance, r.url AS owner_url,
       extract(epoch FROM r.alive_until - clock_timestamp())::float8 AS lease_seconds, p.position AS projected_position
FROM noetl.execution_shard AS s
LEFT JOIN noetl.runtime AS r ON r.runtime_id = s.owner_runtime_id
LEFT JOIN noetl.projection_checkpoint AS p ON p.shard_id = s.shard_id
ORDER BY s.shard_id

-- name: keep_sessions
INSERT INTO noetl.session (session_id, runtime_id, worker_id, pool, kinds, slots, place, leased_until)
SELECT t.session_id, :runtime_id::bigint, t.worker_id, t.pool,
       CASE WHEN t.kinds IS NULL THEN NULL ELSE string_to_array(t.kinds, '+') END, t.slots, t.place::json,
       clock_timestamp() + make_interval(secs => :lease_seconds::float8)
FROM unnest(:sessions::bigint[], :workers::text[], :pools::text[], :kinds::text[], :slots::integer[], :places::text[])
    AS t(session_id, worker_id, pool, kinds, slots, place)
ON CONFLICT (session_id) DO UPDATE SET slots = excluded.slots, leased_until = excluded.leased_until

-- name: end_session
WITH gone AS (
    DELETE FROM noetl.session
    WHERE session_id = :session_id::bigint AND (:worker_id::text IS NULL OR worker_id = :worker_id::text)
    RETURNING session_id
)
UPDATE noetl.command SET session_id = NULL, stop = NULL
WHERE session_id = :session_id::bigint AND (:worker_id::text IS NULL OR EXISTS (SELECT 1 FROM gone))
RETURNING execution_id

-- name: release_dead
-- Claims of sessions that nobody vouches for, also of those that never were.
WITH dead AS MATERIALIZED (
    SELECT DISTINCT c.session_id
    FROM noetl.command AS c
    WHERE c.session_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM noetl.session AS s
        JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
        WHERE s.session_id = c.session_id AND s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp())
), gone AS (
    DELETE FROM noetl.session AS s
    WHERE s.leased_until <= clock_timestamp() OR NOT EXISTS (
        SELECT 1 FROM noetl.runtime AS r WHERE r.runtime_id = s.runtime_id AND r.alive_until > clock_timestamp())
)
UPDATE noetl.command SET session_id = NULL, stop = NULL
WHERE session_id = ANY (ARRAY(SELECT dead.session_id FROM dead))
RETURNING execution_id

-- name: held_commands
SELECT execution_id, command_id, attempt, session_id, stop
FROM noetl.command WHERE session_id = ANY (:sessions::bigint[])

-- name: held_elsewhere
SELECT c.execution_id, c.command_id, c.attempt, c.session_id, c.stop
FROM noetl.session AS s
JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
JOIN noetl.command AS c ON c.session_id = s.session_id
WHERE s.runtime_id <> :runtime_id::bigint AND s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp()
  AND c.shard_id = ANY (:shards::integer[])

-- name: living_sessions
SELECT s.session_id, s.worker_id, s.pool, s.kinds, s.slots, s.place::text AS place
FROM noetl.session AS s
JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
WHERE s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp()
ORDER BY s.session_id

-- name: take_commands
-- The row first, then the event: what another server gives to its session must not be given twice.  A row that is ahead
-- of the ledger is one whose claim is on its way, or was lost on it.
UPDATE noetl.command AS c
SET session_id = t.session_id, attempt = t.attempt, stop = NULL
FROM unnest(:executions::bigint[], :commands::text[], :attempts::integer[], :sessions::bigint[])
    AS t(execution_id, command_id, attempt, session_id)
WHERE c.execution_id = t.execution_id AND c.command_id = t.command_id
  -- What this session has already taken with this attempt was asked for before, and the answer was lost.
  AND (c.session_id IS NULL AND c.attempt <= t.attempt OR c.session_id = t.session_id AND c.attempt = t.attempt)
RETURNING c.execution_id, c.command_id

-- name: free_commands
SELECT command_id, attempt FROM noetl.command
WHERE execution_id = :execution_id::bigint AND session_id IS NULL AND available_at <= clock_timestamp()
ORDER BY command_id

-- name: free_shards
-- The rows that can be locked now; they are given back with the end of the statement.
SELECT shard_id FROM noetl.execution_shard WHERE shard_id = ANY (:shards::integer[])
ORDER BY shard_id FOR UPDATE SKIP LOCKED

-- name: hold_shards
-- Kept to the end of the transaction, so that nobody appends between a look and the decision about what it showed.  In
-- shard order, as every writer takes them: no deadlock.
SELECT shard_id FROM noetl.execution_shard WHERE shard_id = ANY (:shards::integer[]) ORDER BY shard_id FOR UPDATE

-- name: shard_of
SELECT shard_id FROM noetl.stream WHERE execution_id = :execution_id::bigint
