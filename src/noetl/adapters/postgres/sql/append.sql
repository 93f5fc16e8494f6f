-- Appending facts without owning the shard: one statement per commit, made of the parts that it needs.

-- part: begin
-- Locks: shard rows in shard order, then stream rows in id order, so that two writers cannot deadlock.  The shard's
-- row lock is held to commit, which makes commit order equal position order: a reader that remembers one number per
-- shard cannot miss an event that commits late.
-- Keys that are already stored are left out and reported; the rest is inserted without ON CONFLICT, because a skipped
-- row beside a counter would leave a gap.  An offer is appended whole or not at all: it is refused when one of its keys
-- is stored with other content, or when one of its streams is closed or at another version than the offer expects.
-- A concurrent duplicate is a unique violation: all of it rolls back.
-- Rows are found by LATERAL … LIMIT 1 and by arrays, which leave the planner no choice but the index.
-- The partitions of the batch are chosen once, by its smallest and largest execution, and not for every row: in
-- Postgres 18 a statement that had to wait for a row lock crashes the server when it prunes partitions per row (the
-- recheck of the locked row overwrites the state of the pruning).  The array around the one id is what keeps the
-- planner from pruning by it; the index is used all the same.
-- Postgres reads no document with an escaped NUL: the writer sends another mark (`:nul`), which becomes one again here.
WITH event_in AS (
    SELECT t.n, t.offer, t.shard_id, t.shard_ordinal, t.stream_ordinal, t.expected_version, t.closes, t.checksum, t.execution_id, t.event_id, t.tenant_id,
           t.organization_id, t.stream_id, t.aggregate_type, t.aggregate_id, t.event_type, t.schema_name,
           t.schema_version, t.event_time, t.producer, t.causation_id, t.correlation_id, t.idempotency_key,
           t.transition_key, t.command_id, t.stage_id, t.frame_id, t.parent_event_id, t.parent_execution_id,
           CASE WHEN :nul::text IS NULL THEN t.payload_ref
                ELSE replace(t.payload_ref::text, :nul::text, '\u0000')::json END AS payload_ref,
           CASE WHEN :nul::text IS NULL THEN t.result
                ELSE replace(t.result::text, :nul::text, '\u0000')::json END AS result,
           CASE WHEN :nul::text IS NULL THEN t.writes
                ELSE replace(t.writes::text, :nul::text, '\u0000')::json END AS writes,
           CASE WHEN :nul::text IS NULL THEN t.meta
                ELSE replace(t.meta::text, :nul::text, '\u0000')::json END AS meta
    FROM json_to_recordset(:events::json) AS t(
        n integer, offer integer, shard_id integer, shard_ordinal integer, stream_ordinal integer,
        expected_version bigint, closes boolean, checksum bytea,
        execution_id bigint, event_id bigint, tenant_id text, organization_id text, stream_id text,
        aggregate_type text, aggregate_id text, event_type text, schema_name text, schema_version integer,
        event_time timestamptz, producer text, causation_id bigint, correlation_id text, idempotency_key text,
        transition_key text, command_id text, stage_id text, frame_id text, parent_event_id bigint,
        parent_execution_id bigint, payload_ref json, result json, writes json, meta json)
), shard AS MATERIALIZED (
    SELECT s.shard_id, s.next_position
    FROM unnest(:shards::integer[]) AS t(shard_id)
    CROSS JOIN LATERAL (
        SELECT o.shard_id, o.next_position FROM noetl.execution_shard AS o
        WHERE o.shard_id = t.shard_id FOR UPDATE) AS s
), stream AS MATERIALIZED (
    SELECT st.execution_id, st.version, st.closed
    FROM unnest(:streams::bigint[]) AS t(execution_id)
    CROSS JOIN LATERAL (
        SELECT o.execution_id, o.version, o.closed FROM noetl.stream AS o
        WHERE o.execution_id = t.execution_id AND (SELECT count(*) FROM shard) >= 0 FOR UPDATE) AS st
), judged AS MATERIALIZED (
    SELECT e.*, stored.position AS stored_position, stored.is_same, stream.version AS version_seen,
           coalesce(stream.closed, false) AS is_closed,
           CASE WHEN stored.position IS NOT NULL THEN NOT stored.is_same
                ELSE coalesce(stream.closed, false)
                     OR coalesce(e.expected_version <> coalesce(stream.version, 0), false) END AS is_refused
    FROM event_in AS e
    LEFT JOIN LATERAL (
        SELECT o.position, o.event_type = e.event_type AND o.result::text IS NOT DISTINCT FROM e.result::text
                   AND o.writes::text IS NOT DISTINCT FROM e.writes::text AS is_same
        FROM noetl.event AS o
        WHERE o.execution_id BETWEEN :first_id::bigint AND :last_id::bigint
          AND o.execution_id = ANY (array_fill(e.execution_id, ARRAY[1]))
          AND o.transition_key = e.transition_key LIMIT 1) AS stored ON true
    LEFT JOIN stream ON stream.execution_id = e.execution_id
), skipped AS MATERIALIZED (
    -- Almost always empty.  The rest closes up behind it: numbers are the caller's count less what is left out before.
    SELECT j.n, j.shard_id, j.execution_id
    FROM judged AS j
    WHERE j.stored_position IS NOT NULL
       OR j.offer = ANY (ARRAY(SELECT r.offer FROM judged AS r WHERE r.is_refused))
), event_out AS (
    INSERT INTO noetl.event (
        execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version,
        aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer,
        causation_id, correlation_id, idempotency_key, transition_key, command_id, stage_id, frame_id,
        parent_event_id, parent_execution_id, payload_ref, result, writes, meta, checksum)
    SELECT j.execution_id,
        shard.next_position + j.shard_ordinal
            - (SELECT count(*) FROM skipped AS s WHERE s.shard_id = j.shard_id AND s.n < j.n),
        j.shard_id, j.event_id, j.tenant_id, j.organization_id, j.stream_id,
        coalesce(j.version_seen, 0) + 1 + j.stream_ordinal
            - (SELECT count(*) FROM skipped AS s WHERE s.execution_id = j.execution_id AND s.n < j.n),
        j.aggregate_type, j.aggregate_id, j.event_type, j.schema_name, j.schema_version, j.event_time,
        clock_timestamp(), j.producer, j.causation_id, j.correlation_id, j.idempotency_key, j.transition_key,
        j.command_id, j.stage_id, j.frame_id, j.parent_event_id, j.parent_execution_id, j.payload_ref, j.result,
        j.writes, j.meta, j.checksum
    FROM judged AS j
    JOIN shard ON shard.shard_id = j.shard_id
    WHERE NOT EXISTS (SELECT 1 FROM skipped AS s WHERE s.n = j.n)
), counted AS MATERIALIZED (
    SELECT j.shard_id, count(*) AS events
    FROM judged AS j WHERE NOT EXISTS (SELECT 1 FROM skipped AS s WHERE s.n = j.n)
    GROUP BY j.shard_id
), counter AS (
    UPDATE noetl.execution_shard AS s
    SET next_position = s.next_position + (SELECT counted.events FROM counted WHERE counted.shard_id = s.shard_id)
    WHERE s.shard_id = ANY (ARRAY(SELECT counted.shard_id FROM counted))
), grown AS MATERIALIZED (
    SELECT j.execution_id, min(j.shard_id) AS shard_id, min(j.tenant_id) AS tenant_id,
           min(j.organization_id) AS organization_id, coalesce(max(j.version_seen), 0) + count(*) AS version,
           bool_or(j.closes IS TRUE) AS closed, bool_or(j.version_seen IS NULL) AS is_new
    FROM judged AS j WHERE NOT EXISTS (SELECT 1 FROM skipped AS s WHERE s.n = j.n)
    GROUP BY j.execution_id
), opened AS (
    INSERT INTO noetl.stream (execution_id, shard_id, tenant_id, organization_id, version, closed)
    SELECT execution_id, shard_id, tenant_id, organization_id, version, closed FROM grown WHERE is_new
), continued AS (
    UPDATE noetl.stream AS st
    SET (version, closed) = (SELECT grown.version, grown.closed FROM grown WHERE grown.execution_id = st.execution_id)
    WHERE st.execution_id = ANY (ARRAY(SELECT grown.execution_id FROM grown WHERE NOT grown.is_new))
)

-- part: payloads
-- Only with an event of their offer: what a refused offer carries is not kept.
-- Equal content put twice is one object: the conflict on the content address is the success case.  What was put lately
-- is left alone, so that reuse costs no write and no lock; anything older is renewed under its lock.  Otherwise a
-- collector, for which nothing named it, could delete it between our look and our commit.
payload_out AS (
    INSERT INTO noetl.payload (tenant_id, organization_id, sha256, media_type, content)
    -- Two offers may carry the same; all writers have the same order and cannot deadlock.
    SELECT DISTINCT ON (t.tenant_id COLLATE "C", t.organization_id COLLATE "C", t.sha256 COLLATE "C")
           t.tenant_id, t.organization_id, t.sha256, t.media_type, t.content
    FROM unnest(:payload_offers::integer[], :payload_tenants::text[], :payload_organizations::text[],
                :payload_digests::text[], :payload_media_types::text[], :payload_contents::bytea[])
        AS t(offer, tenant_id, organization_id, sha256, media_type, content)
    WHERE t.offer = ANY (ARRAY(
        SELECT j.offer FROM judged AS j WHERE NOT EXISTS (SELECT 1 FROM skipped AS s WHERE s.n = j.n)))
      AND NOT EXISTS (
        SELECT 1 FROM noetl.payload AS kept
        WHERE kept.tenant_id = t.tenant_id AND kept.organization_id = t.organization_id AND kept.sha256 = t.sha256
          AND kept.renewed_at > clock_timestamp() - interval '1 hour')
    ORDER BY t.tenant_id COLLATE "C", t.organization_id COLLATE "C", t.sha256 COLLATE "C"
    ON CONFLICT (tenant_id, organization_id, sha256) DO UPDATE SET renewed_at = clock_timestamp()
)

-- part: end
SELECT shard.shard_id, shard.next_position, NULL::integer AS n, NULL::bigint AS position, NULL::boolean AS is_same,
       NULL::boolean AS closed, NULL::bigint AS version
FROM shard
UNION ALL
SELECT NULL, NULL, j.n, j.stored_position, j.is_same, j.is_closed, coalesce(j.version_seen, 0)
FROM judged AS j
WHERE j.stored_position IS NOT NULL OR j.is_refused
