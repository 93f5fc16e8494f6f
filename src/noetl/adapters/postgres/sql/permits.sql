-- Shared limits: read, dealt by the core, written if nobody else was faster.  Nothing is locked in between, so that a
-- process which stops there holds up nobody.

-- name: read_book
-- The limit, its users, which sessions are alive, and the time, all of one moment.
WITH alive AS MATERIALIZED (
    SELECT s.session_id
    FROM noetl.session AS s
    JOIN noetl.runtime AS r ON r.runtime_id = s.runtime_id
    WHERE s.leased_until > clock_timestamp() AND r.alive_until > clock_timestamp()
)
SELECT extract(epoch FROM clock_timestamp())::float8 AS now,
       coalesce((SELECT array_agg(a.session_id) FROM alive AS a WHERE a.session_id = ANY (:own::bigint[])),
                '{}') AS living,
       coalesce(l.version, 0) AS version, coalesce(l.next_at, 0) AS next_at, coalesce(l.share, 0) AS share,
       coalesce(l.dealt, 0) AS dealt, u.session_id, u.execution_id, u.granted, u.returned, u.asked, u.served, u.dealt_at,
       u.rate, u.concurrency, u.heard_at, EXISTS (SELECT 1 FROM alive AS a WHERE a.session_id = u.session_id) AS is_alive
FROM (SELECT 1) AS one
LEFT JOIN noetl.shared_limit AS l
    ON l.tenant_id = :tenant_id::text AND l.organization_id = :organization_id::text AND l.name = :name::text
LEFT JOIN noetl.limit_lease AS u
    ON u.tenant_id = l.tenant_id AND u.organization_id = l.organization_id AND u.name = l.name

-- name: write_book
-- The version is the fence: whoever read before the last turn was written writes nothing, here and in the leases.
WITH fence AS (
    INSERT INTO noetl.shared_limit AS l (tenant_id, organization_id, name, version, next_at, share, dealt)
    VALUES (:tenant_id::text, :organization_id::text, :name::text, :version::bigint + 1, :next_at::float8,
            :share::bigint, :dealt::bigint)
    ON CONFLICT (tenant_id, organization_id, name) DO UPDATE
    SET version = excluded.version, next_at = excluded.next_at, share = excluded.share, dealt = excluded.dealt
    WHERE l.version = :version::bigint
    RETURNING l.version
), gone AS (
    DELETE FROM noetl.limit_lease AS u
    USING unnest(:gone_sessions::bigint[], :gone_executions::bigint[]) AS t(session_id, execution_id)
    WHERE u.tenant_id = :tenant_id::text AND u.organization_id = :organization_id::text AND u.name = :name::text
      AND u.session_id = t.session_id AND u.execution_id = t.execution_id AND EXISTS (SELECT 1 FROM fence)
), kept AS (
    INSERT INTO noetl.limit_lease (
        tenant_id, organization_id, name, session_id, execution_id, granted, returned, asked, served, dealt_at, rate,
        concurrency, heard_at)
    SELECT :tenant_id::text, :organization_id::text, :name::text, t.session_id, t.execution_id, t.granted, t.returned,
           t.asked, t.served, t.dealt_at, t.rate, t.concurrency, t.heard_at
    FROM unnest(:sessions::bigint[], :executions::bigint[], :granted::bigint[], :returned::bigint[], :asked::bigint[],
                :served::bigint[], :dealt_at::bigint[], :rates::float8[], :concurrencies::integer[], :heard_at::float8[])
        AS t(session_id, execution_id, granted, returned, asked, served, dealt_at, rate, concurrency, heard_at)
    WHERE EXISTS (SELECT 1 FROM fence)
    ON CONFLICT (tenant_id, organization_id, name, session_id, execution_id) DO UPDATE
    SET granted = excluded.granted, returned = excluded.returned, asked = excluded.asked, served = excluded.served,
        dealt_at = excluded.dealt_at, rate = excluded.rate, concurrency = excluded.concurrency,
        heard_at = excluded.heard_at
)
SELECT version FROM fence

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
