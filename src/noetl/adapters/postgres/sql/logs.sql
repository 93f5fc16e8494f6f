-- name: write_chunks
-- The lock of an execution is held to commit, and numbers are drawn under it: of one execution they become visible in
-- their order, so that a reader who remembers the last one cannot miss a chunk that commits late.  Locks are taken in
-- the order of their keys, so that two writers cannot deadlock.  The first key keeps these locks apart from others.
-- A chunk that was written before is the success case of a writer who lost the answer.
WITH held AS MATERIALIZED (
    SELECT count(t.lock) AS locks
    FROM (SELECT pg_advisory_xact_lock(7140601, e.key)::text AS lock
          FROM (SELECT DISTINCT hashint8(i.execution_id) AS key FROM unnest(:execution_id::bigint[]) AS i(execution_id)) AS e
          ORDER BY e.key) AS t
)
INSERT INTO noetl.log_chunk (execution_id, tenant_id, organization_id, step, command_id, attempt, seq, first_at,
                             last_at, lines, bytes, content, reference)
SELECT c.execution_id, c.tenant_id, c.organization_id, c.step, c.command_id, c.attempt, c.seq, c.first_at, c.last_at,
       c.lines, c.bytes, c.content, c.reference
FROM held
CROSS JOIN unnest(:execution_id::bigint[], :tenant_id::text[], :organization_id::text[], :step::text[],
                  :command_id::text[], :attempt::integer[], :seq::integer[], :first_at::timestamptz[],
                  :last_at::timestamptz[], :lines::integer[], :size_bytes::integer[], :content::bytea[],
                  :reference::text[]::json[])
    WITH ORDINALITY AS c(execution_id, tenant_id, organization_id, step, command_id, attempt, seq, first_at, last_at,
                         lines, bytes, content, reference, n)
WHERE held.locks >= 0
ORDER BY c.n
ON CONFLICT (execution_id, command_id, attempt, seq) DO NOTHING

-- name: chunks
SELECT log_id, execution_id, tenant_id, organization_id, step, command_id, attempt, seq, first_at, last_at, lines,
       bytes AS size_bytes, content, reference::text AS reference
FROM noetl.log_chunk
WHERE execution_id = :execution_id::bigint AND log_id > :after::bigint
  AND tenant_id = :tenant_id::text AND organization_id = :organization_id::text
  AND (:step::text IS NULL OR step = :step::text)
ORDER BY log_id
LIMIT :rows::integer
