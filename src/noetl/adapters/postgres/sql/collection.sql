-- Reading everything that names payloads, page by page in the order of a key, and the books of the collector.

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8 AS seconds

-- name: working_since
-- Issued before it was claimed, and claimed before it stored anything.
SELECT extract(epoch FROM min(available_at))::float8 AS seconds FROM noetl.command WHERE session_id IS NOT NULL

-- name: take_turn
-- One collector at a time.  At the level of a transaction, so that it works behind a pooler; the transaction changes
-- nothing, has no snapshot between its statements and holds back no vacuum.
SELECT pg_try_advisory_xact_lock(7305809156) AS is_taken

-- name: keep_turn
SELECT 1 AS one

-- name: wait_for_ever
-- The connection is idle while payloads are read and deleted, which may take hours.
SET LOCAL idle_in_transaction_session_timeout = 0

-- name: events
SELECT execution_id, position, tenant_id, organization_id, concat_ws(' ', payload_ref, result, writes, meta) AS text
FROM noetl.event
WHERE (execution_id, position) > (:execution_id::bigint, :position::bigint)
ORDER BY execution_id, position
LIMIT :rows::integer

-- name: commands
SELECT execution_id, command_id, tenant_id, organization_id, body::text AS text
FROM noetl.command
WHERE (execution_id, command_id) > (:execution_id::bigint, :command_id::text)
ORDER BY execution_id, command_id
LIMIT :rows::integer

-- name: executions
SELECT execution_id, tenant_id, organization_id, playbook_digest AS text
FROM noetl.execution
WHERE execution_id > :execution_id::bigint
ORDER BY execution_id
LIMIT :rows::integer

-- name: catalog
SELECT catalog_id, tenant_id, organization_id,
       concat_ws(' ', sha256, payload, scripts, scripts_sha256, warnings) AS text
FROM noetl.catalog
WHERE catalog_id > :catalog_id::bigint
ORDER BY catalog_id
LIMIT :rows::integer

-- name: idempotency
SELECT tenant_id, organization_id, idempotency_key, request_digest AS text
FROM noetl.idempotency
WHERE (tenant_id, organization_id, idempotency_key)
    > (:tenant_id::text, :organization_id::text, :idempotency_key::text)
ORDER BY tenant_id, organization_id, idempotency_key
LIMIT :rows::integer

-- name: logs
-- Also rows without a reference: a page is a bounded piece of work, however few rows have one.
SELECT execution_id, log_id, tenant_id, organization_id, coalesce(reference::text, '') AS text
FROM noetl.log_chunk
WHERE (execution_id, log_id) > (:execution_id::bigint, :log_id::bigint)
ORDER BY execution_id, log_id
LIMIT :rows::integer

-- name: next_owner
SELECT tenant_id, organization_id FROM noetl.payload
WHERE (tenant_id, organization_id) > (:tenant_id::text, :organization_id::text)
ORDER BY tenant_id, organization_id
LIMIT 1

-- name: objects
SELECT sha256, media_type, octet_length(content) AS bytes, extract(epoch FROM renewed_at)::float8 AS renewed_at
FROM noetl.payload
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND sha256 > :sha256::text
ORDER BY sha256
LIMIT :rows::integer

-- name: contents
SELECT p.sha256, p.content
FROM unnest(:digests::text[]) AS t(sha256)
CROSS JOIN LATERAL (
    SELECT o.sha256, o.content FROM noetl.payload AS o
    WHERE o.tenant_id = :tenant_id::text AND o.organization_id = :organization_id::text AND o.sha256 = t.sha256) AS p

-- name: delete_payload
-- An append that uses the row again renews it under its lock: whoever comes second sees what the first one did.
DELETE FROM noetl.payload
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND sha256 = :sha256::text
  AND renewed_at < to_timestamp(:renewed_before::float8)
RETURNING sha256

-- name: is_there
SELECT sha256 FROM noetl.payload
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND sha256 = :sha256::text

-- name: candidates
SELECT c.sha256, extract(epoch FROM c.candidate_at)::float8 AS candidate_at
FROM unnest(:digests::text[]) AS t(sha256)
CROSS JOIN LATERAL (
    SELECT o.sha256, o.candidate_at FROM noetl.payload_candidate AS o
    WHERE o.store = :store::text AND o.tenant_id = :tenant_id::text AND o.organization_id = :organization_id::text
      AND o.sha256 = t.sha256) AS c

-- name: record_candidates
INSERT INTO noetl.payload_candidate (store, tenant_id, organization_id, sha256, candidate_at, confirmed_at)
SELECT :store::text, :tenant_id::text, :organization_id::text, t.sha256,
       least(to_timestamp(t.candidate_at), to_timestamp(:now::float8)), to_timestamp(:now::float8)
FROM unnest(:digests::text[], :times::float8[]) AS t(sha256, candidate_at)
-- Seen before: the time is the caller's, who knows whether the object was renewed meanwhile.
ON CONFLICT (store, tenant_id, organization_id, sha256) DO UPDATE
SET candidate_at = excluded.candidate_at, confirmed_at = excluded.confirmed_at

-- name: forget_candidates
DELETE FROM noetl.payload_candidate
WHERE store = ANY (:stores::text[]) AND confirmed_at < to_timestamp(:before::float8)

-- name: names
SELECT n.sha256, n.names
FROM unnest(:digests::text[]) AS t(sha256)
CROSS JOIN LATERAL (SELECT o.sha256, o.names FROM noetl.payload_names AS o WHERE o.sha256 = t.sha256) AS n

-- name: remember_names
INSERT INTO noetl.payload_names (sha256, names)
SELECT t.sha256, string_to_array(t.names, ' ')
FROM unnest(:digests::text[], :names::text[]) AS t(sha256, names)
-- The same bytes name the same.
ON CONFLICT (sha256) DO NOTHING

-- name: forget_names
DELETE FROM noetl.payload_names WHERE sha256 = ANY (:digests::text[])
