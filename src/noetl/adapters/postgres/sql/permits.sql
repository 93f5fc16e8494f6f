-- Shared limits.  A turn is one short transaction: the limit is locked, its users are read, the core deals, and all is
-- written.  Whoever comes meanwhile waits in line, so that nobody is too slow ever to have a turn; a process that stands
-- still with the lock loses its connection within a second (`Transactions`).

-- name: lock_limit
-- Two turns that read the same users would give the same permits twice.
SELECT l.next_at, l.share, l.dealt, l.turned_at, l.opened_at
FROM noetl.shared_limit AS l
WHERE l.tenant_id = :tenant_id::text AND l.organization_id = :organization_id::text AND l.name = :name::text
FOR UPDATE

-- name: add_limit
INSERT INTO noetl.shared_limit (tenant_id, organization_id, name, next_at, share, dealt, turned_at, opened_at)
VALUES (:tenant_id::text, :organization_id::text, :name::text, 0, 0, 0, 0, 0)
-- Two that use it first: one of them adds it, and both lock it then.
ON CONFLICT (tenant_id, organization_id, name) DO NOTHING

-- name: read_users
-- A statement of its own, behind the lock: it must see what the turn before has written.  Which sessions are alive, and
-- the time, are of the same moment.
WITH alive AS MATERIALIZED (
    SELECT s.session_id
    FROM noetl.session AS s
    JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
    WHERE s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp()
)
SELECT extract(epoch FROM clock_timestamp())::float8 AS now,
       (SELECT b.opened_at FROM noetl.limit_books AS b WHERE b.is_one) AS opened_at,
       coalesce((SELECT array_agg(a.session_id) FROM alive AS a WHERE a.session_id = ANY (:own::bigint[])),
                '{}') AS living,
       u.session_id, u.execution_id, u.granted, u.returned, u.asked, u.served, u.dealt_at, u.rate, u.concurrency,
       u.heard_at, EXISTS (SELECT 1 FROM alive AS a WHERE a.session_id = u.session_id) AS is_alive
FROM (SELECT 1) AS one
LEFT JOIN noetl.limit_lease AS u
    ON u.tenant_id = :tenant_id::text AND u.organization_id = :organization_id::text AND u.name = :name::text

-- name: open_books
INSERT INTO noetl.limit_books (is_one, opened_at) VALUES (true, :now::float8)
-- Turns of several limits find at the same moment that the books were lost.
ON CONFLICT (is_one) DO NOTHING

-- name: write_book
WITH turned AS (
    UPDATE noetl.shared_limit AS l
    SET next_at = :next_at::float8, share = :share::bigint, dealt = :dealt::bigint, turned_at = :turned_at::float8,
        opened_at = :opened_at::float8
    WHERE l.tenant_id = :tenant_id::text AND l.organization_id = :organization_id::text AND l.name = :name::text
), gone AS (
    DELETE FROM noetl.limit_lease AS u
    USING unnest(:gone_sessions::bigint[], :gone_executions::bigint[]) AS t(session_id, execution_id)
    WHERE u.tenant_id = :tenant_id::text AND u.organization_id = :organization_id::text AND u.name = :name::text
      AND u.session_id = t.session_id AND u.execution_id = t.execution_id
)
INSERT INTO noetl.limit_lease (
    tenant_id, organization_id, name, session_id, execution_id, granted, returned, asked, served, dealt_at, rate,
    concurrency, heard_at)
SELECT :tenant_id::text, :organization_id::text, :name::text, t.session_id, t.execution_id, t.granted, t.returned,
       t.asked, t.served, t.dealt_at, t.rate, t.concurrency, t.heard_at
FROM unnest(:sessions::bigint[], :executions::bigint[], :granted::bigint[], :returned::bigint[], :asked::bigint[],
            :served::bigint[], :dealt_at::bigint[], :rates::float8[], :concurrencies::integer[], :heard_at::float8[])
    AS t(session_id, execution_id, granted, returned, asked, served, dealt_at, rate, concurrency, heard_at)
-- A user that is known; nobody else writes it, for the limit is locked.
ON CONFLICT (tenant_id, organization_id, name, session_id, execution_id) DO UPDATE
SET granted = excluded.granted, returned = excluded.returned, asked = excluded.asked, served = excluded.served,
    dealt_at = excluded.dealt_at, rate = excluded.rate, concurrency = excluded.concurrency,
    heard_at = excluded.heard_at

-- name: sweep_limits
-- A limit that is in use has a turn every few seconds, so nothing of these is alive.  One that is locked is used again.
WITH old AS MATERIALIZED (
    SELECT l.tenant_id, l.organization_id, l.name
    FROM noetl.shared_limit AS l
    WHERE l.turned_at < extract(epoch FROM clock_timestamp())::float8 - :unused_seconds::float8
    LIMIT :count::integer
    FOR UPDATE SKIP LOCKED
), leases AS (
    DELETE FROM noetl.limit_lease AS u
    USING old AS o
    WHERE u.tenant_id = o.tenant_id AND u.organization_id = o.organization_id AND u.name = o.name
)
DELETE FROM noetl.shared_limit AS l
USING old AS o
WHERE l.tenant_id = o.tenant_id AND l.organization_id = o.organization_id AND l.name = o.name
RETURNING l.name

-- name: look_at_limits
SELECT l.name, l.dealt, extract(epoch FROM clock_timestamp())::float8 AS now, u.session_id, u.execution_id, u.granted,
       u.returned, u.asked, u.served, u.dealt_at, u.rate, u.concurrency, u.heard_at
FROM noetl.shared_limit AS l
JOIN noetl.limit_lease AS u
    ON u.tenant_id = l.tenant_id AND u.organization_id = l.organization_id AND u.name = l.name
JOIN noetl.session AS s ON s.session_id = u.session_id
JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
WHERE l.tenant_id = :tenant_id::text AND l.organization_id = :organization_id::text
  AND s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp()
ORDER BY l.name, u.execution_id, u.session_id
