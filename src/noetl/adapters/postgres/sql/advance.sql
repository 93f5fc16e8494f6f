-- A decider's commit: one statement, made of the parts that it needs.  `:name` is a bound parameter.
-- The decider has seen every event of its shards, so it gives positions and stream versions itself; the fence in the
-- shard's row (epoch and next_position) makes the database refuse it when it has not.  So does a stream that is at
-- another version than the decider thinks: nobody else appends while the shard's row is held and unchanged.

-- part: begin
-- Fence, counter and watermark are one UPDATE.  Rows are taken in shard order (the index scan of a sorted array), as
-- in `append`, so that two writers cannot deadlock.  The lock is held to commit: commit order is position order.
WITH fence AS MATERIALIZED (
    SELECT t.shard_id, t.epoch, t.seen, t.next, t.decided
    FROM json_to_recordset(:fences::json) AS t(shard_id integer, epoch bigint, seen bigint, next bigint, decided bigint)
), moved AS MATERIALIZED (
    SELECT s.shard_id, fence.next, fence.decided
    FROM fence CROSS JOIN LATERAL (
        SELECT o.shard_id FROM noetl.execution_shard AS o
        WHERE o.shard_id = fence.shard_id AND o.epoch = fence.epoch AND o.next_position = fence.seen
          AND NOT EXISTS (
            SELECT 1
            FROM unnest(:stream_shards::integer[], :stream_ids::bigint[], :stream_seen::bigint[])
                AS t(shard_id, execution_id, version)
            JOIN noetl.stream AS known ON known.execution_id = t.execution_id AND known.version <> t.version
            WHERE t.shard_id = fence.shard_id)
        FOR UPDATE) AS s
), counter AS (
    UPDATE noetl.execution_shard AS s
    SET (next_position, decided_position)
        = (SELECT moved.next, moved.decided FROM moved WHERE moved.shard_id = s.shard_id)
    WHERE s.shard_id = ANY (ARRAY(SELECT moved.shard_id FROM moved))
)

-- part: begin_one
-- The same for a commit in one shard, without the detour over a document; so are the other parts named `…_one`.
WITH moved AS (
    UPDATE noetl.execution_shard AS s
    SET next_position = :next::bigint, decided_position = :decided::bigint
    WHERE s.shard_id = :shard_id::integer AND s.epoch = :epoch::bigint AND s.next_position = :seen::bigint
      AND NOT EXISTS (
        SELECT 1
        FROM unnest(:stream_ids::bigint[], :stream_seen::bigint[]) AS t(execution_id, version)
        JOIN noetl.stream AS known ON known.execution_id = t.execution_id AND known.version <> t.version)
    RETURNING s.shard_id
)

-- part: events
-- Postgres reads no document with an escaped NUL: the writer sends another mark (`:nul`), which becomes one again here.
event_in AS MATERIALIZED (
    SELECT t.shard_id, t.position, t.stream_version, t.checksum, t.execution_id, t.event_id, t.tenant_id,
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
        shard_id integer, position bigint, stream_version bigint, checksum bytea,
        execution_id bigint, event_id bigint, tenant_id text, organization_id text, stream_id text,
        aggregate_type text, aggregate_id text, event_type text, schema_name text, schema_version integer,
        event_time timestamptz, producer text, causation_id bigint, correlation_id text, idempotency_key text,
        transition_key text, command_id text, stage_id text, frame_id text, parent_event_id bigint,
        parent_execution_id bigint, payload_ref json, result json, writes json, meta json)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
), event_out AS (
    INSERT INTO noetl.event (
        execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version,
        aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer,
        causation_id, correlation_id, idempotency_key, transition_key, command_id, stage_id, frame_id,
        parent_event_id, parent_execution_id, payload_ref, result, writes, meta, checksum)
    SELECT execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version,
        aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time, clock_timestamp(), producer,
        causation_id, correlation_id, idempotency_key, transition_key, command_id, stage_id, frame_id,
        parent_event_id, parent_execution_id, payload_ref, result, writes, meta, checksum
    FROM event_in
)

-- part: events_one
event_out AS (
    INSERT INTO noetl.event (
        execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version,
        aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer,
        causation_id, correlation_id, idempotency_key, transition_key, command_id, stage_id, frame_id,
        parent_event_id, parent_execution_id, payload_ref, result, writes, meta, checksum)
    SELECT t.execution_id, t.position, t.shard_id, t.event_id, t.tenant_id, t.organization_id, t.stream_id,
        t.stream_version, t.aggregate_type, t.aggregate_id, t.event_type, t.schema_name, t.schema_version,
        t.event_time, clock_timestamp(), t.producer, t.causation_id, t.correlation_id, t.idempotency_key,
        t.transition_key, t.command_id, t.stage_id, t.frame_id, t.parent_event_id, t.parent_execution_id,
        t.payload_ref, t.result, t.writes, t.meta, t.checksum
    FROM json_to_recordset(:events::json) AS t(
        shard_id integer, position bigint, stream_version bigint, checksum bytea,
        execution_id bigint, event_id bigint, tenant_id text, organization_id text, stream_id text,
        aggregate_type text, aggregate_id text, event_type text, schema_name text, schema_version integer,
        event_time timestamptz, producer text, causation_id bigint, correlation_id text, idempotency_key text,
        transition_key text, command_id text, stage_id text, frame_id text, parent_event_id bigint,
        parent_execution_id bigint, payload_ref json, result json, writes json, meta json)
    WHERE EXISTS (SELECT 1 FROM moved)
)

-- part: streams
stream_in AS MATERIALIZED (
    SELECT t.execution_id, t.version, t.closed
    FROM json_to_recordset(:streams::json) AS t(shard_id integer, execution_id bigint, version bigint, closed boolean)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
), stream_out AS (
    UPDATE noetl.stream AS st
    SET (version, closed) = (
        SELECT i.version, i.closed FROM stream_in AS i WHERE i.execution_id = st.execution_id)
    WHERE st.execution_id = ANY (ARRAY(SELECT i.execution_id FROM stream_in AS i))
)

-- part: streams_one
stream_out AS (
    UPDATE noetl.stream AS st
    SET version = :stream_version::bigint, closed = :stream_closed::boolean
    WHERE st.execution_id = :stream_execution::bigint AND EXISTS (SELECT 1 FROM moved)
)

-- part: opened
opened_out AS (
    INSERT INTO noetl.stream (execution_id, shard_id, tenant_id, organization_id, version, closed)
    SELECT t.execution_id, t.shard_id, t.tenant_id, t.organization_id, t.version, t.closed
    FROM json_to_recordset(:opened::json) AS t(
        execution_id bigint, shard_id integer, tenant_id text, organization_id text, version bigint, closed boolean)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
)

-- part: payloads
-- With any fence that held: a payload too many is garbage, one too few would be a dangling reference.
-- Equal content put twice is one object, and renewed by the rule that `append.sql` tells.
payload_out AS (
    INSERT INTO noetl.payload (tenant_id, organization_id, sha256, media_type, content)
    SELECT t.tenant_id, t.organization_id, t.sha256, t.media_type, t.content
    FROM unnest(:payload_tenants::text[], :payload_organizations::text[], :payload_digests::text[],
                :payload_media_types::text[], :payload_contents::bytea[])
        AS t(tenant_id, organization_id, sha256, media_type, content)
    WHERE EXISTS (SELECT 1 FROM moved)
      AND NOT EXISTS (
        SELECT 1 FROM noetl.payload AS kept
        WHERE kept.tenant_id = t.tenant_id AND kept.organization_id = t.organization_id AND kept.sha256 = t.sha256
          AND kept.renewed_at > clock_timestamp() - interval '1 hour')
    ON CONFLICT (tenant_id, organization_id, sha256) DO UPDATE SET renewed_at = clock_timestamp()
)

-- part: payloads_one
payload_out AS (
    INSERT INTO noetl.payload (tenant_id, organization_id, sha256, media_type, content)
    SELECT :payload_tenant::text, :payload_organization::text, :payload_digest::text, :payload_media_type::text,
           :payload_content::bytea
    FROM moved
    WHERE NOT EXISTS (
        SELECT 1 FROM noetl.payload AS kept
        WHERE kept.tenant_id = :payload_tenant::text AND kept.organization_id = :payload_organization::text
          AND kept.sha256 = :payload_digest::text AND kept.renewed_at > clock_timestamp() - interval '1 hour')
    -- Equal content put twice is one object, and renewed by the rule that `append.sql` tells.
    ON CONFLICT (tenant_id, organization_id, sha256) DO UPDATE SET renewed_at = clock_timestamp()
)

-- part: queue
queue_out AS (
    INSERT INTO noetl.command (
        execution_id, command_id, shard_id, tenant_id, organization_id, pool, tool_kind, attempt, session_id, locality,
        body)
    SELECT t.execution_id, t.command_id, t.shard_id, t.tenant_id, t.organization_id, t.pool, t.tool_kind, t.attempt,
           t.session_id, t.locality,
           CASE WHEN :queue_nul::text IS NULL THEN t.body
                ELSE replace(t.body::text, :queue_nul::text, '\u0000')::json END
    FROM json_to_recordset(:queue::json) AS t(
        execution_id bigint, command_id text, shard_id integer, tenant_id text, organization_id text, pool text,
        tool_kind text, attempt integer, session_id bigint, locality text, body json)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
    -- A rebuilt queue may already hold the row; the ledger says what it must be.
    ON CONFLICT (execution_id, command_id) DO UPDATE
    SET pool = excluded.pool, tool_kind = excluded.tool_kind, attempt = excluded.attempt,
        session_id = excluded.session_id, stop = NULL, locality = excluded.locality, body = excluded.body
    -- A row that is ahead of the ledger belongs to a claim that another server is recording.
    WHERE noetl.command.session_id IS NULL OR noetl.command.attempt <= excluded.attempt
)

-- part: queue_one
queue_out AS (
    INSERT INTO noetl.command (
        execution_id, command_id, shard_id, tenant_id, organization_id, pool, tool_kind, attempt, session_id, locality,
        body)
    SELECT :queue_execution::bigint, :queue_command::text, moved.shard_id, :queue_tenant::text,
           :queue_organization::text, :queue_pool::text, :queue_kind::text, :queue_attempt::integer,
           :queue_session::bigint, :queue_locality::text, :queue_body::json
    FROM moved
    -- A rebuilt queue may already hold the row; the ledger says what it must be.
    ON CONFLICT (execution_id, command_id) DO UPDATE
    SET pool = excluded.pool, tool_kind = excluded.tool_kind, attempt = excluded.attempt,
        session_id = excluded.session_id, stop = NULL, locality = excluded.locality, body = excluded.body
    -- A row that is ahead of the ledger belongs to a claim that another server is recording.
    WHERE noetl.command.session_id IS NULL OR noetl.command.attempt <= excluded.attempt
)

-- part: claims
-- By key and not by place: a recorder of another server may take the same row at this moment.  It loses, for its claim
-- is not in the ledger; but the row has moved then, and whoever looks at its old place would leave it to the loser.
claim_in AS MATERIALIZED (
    SELECT t.execution_id, t.command_id, t.attempt, t.session_id
    FROM json_to_recordset(:claims::json) AS t(
        execution_id bigint, command_id text, shard_id integer, attempt integer, session_id bigint)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
), claim_out AS (
    UPDATE noetl.command AS c
    SET attempt = i.attempt, session_id = i.session_id, stop = NULL
    FROM claim_in AS i
    WHERE c.execution_id = i.execution_id AND c.command_id = i.command_id
)

-- part: stops
-- Words to sessions of other servers; each server reads those for its own.
stop_out AS (
    UPDATE noetl.command AS told
    SET stop = (
        SELECT t.word
        FROM unnest(:stop_executions::bigint[], :stop_commands::text[], :stop_attempts::integer[], :stop_words::text[])
            AS t(execution_id, command_id, attempt, word)
        WHERE t.execution_id = told.execution_id AND t.command_id = told.command_id LIMIT 1)
    WHERE told.session_id IS NOT NULL AND told.shard_id IN (SELECT moved.shard_id FROM moved)
      AND (told.execution_id, told.command_id, told.attempt) IN (
        SELECT t.execution_id, t.command_id, t.attempt
        FROM unnest(:stop_executions::bigint[], :stop_commands::text[], :stop_attempts::integer[])
            AS t(execution_id, command_id, attempt))
)

-- part: dequeue
dequeue_out AS (
    DELETE FROM noetl.command AS gone
    WHERE gone.ctid = ANY (ARRAY(
        SELECT row.ctid
        FROM unnest(:dequeue_executions::bigint[], :dequeue_commands::text[]) AS t(execution_id, command_id)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM noetl.command AS c
            WHERE c.execution_id = t.execution_id AND c.command_id = t.command_id LIMIT 1) AS row))
      AND gone.shard_id IN (SELECT moved.shard_id FROM moved)
)

-- part: dequeue_one
dequeue_out AS (
    DELETE FROM noetl.command AS gone
    WHERE gone.execution_id = :dequeue_execution::bigint AND gone.command_id = :dequeue_command::text
      AND EXISTS (SELECT 1 FROM moved)
)

-- part: timers
timer_out AS (
    INSERT INTO noetl.timer (execution_id, name, shard_id, due_at)
    SELECT t.execution_id, t.name, t.shard_id, t.due_at
    FROM json_to_recordset(:timers::json) AS t(execution_id bigint, name text, shard_id integer, due_at timestamptz)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
    -- The timer of a rebuilt table is the same timer: its name is a function of its cause.
    ON CONFLICT (execution_id, name) DO NOTHING
)

-- part: timers_gone
timer_gone AS (
    DELETE FROM noetl.timer AS gone
    WHERE (gone.execution_id, gone.name) IN (
        SELECT t.execution_id, t.name
        FROM unnest(:gone_executions::bigint[], :gone_names::text[]) AS t(execution_id, name))
      AND gone.shard_id IN (SELECT moved.shard_id FROM moved)
)

-- part: executions
execution_out AS (
    INSERT INTO noetl.execution (
        execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, status, started_at, ended_at,
        last_step, last_event_id, applied_position, parent_execution_id, version, state, retry_of)
    SELECT t.execution_id, t.tenant_id, t.organization_id, t.shard_id, t.path, t.playbook_digest, t.status,
           t.started_at, t.ended_at, t.last_step, t.last_event_id, t.applied_position, t.parent_execution_id,
           t.version, t.state, t.retry_of
    FROM json_to_recordset(:executions::json) AS t(
        execution_id bigint, tenant_id text, organization_id text, shard_id integer, path text, playbook_digest text,
        status text, started_at timestamptz, ended_at timestamptz, last_step text, last_event_id bigint,
        applied_position bigint, parent_execution_id bigint, version bigint, state json,
        retry_of bigint)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
    -- The first row of an execution, so that whoever started it finds it.  All that follows is the projector's, and a
    -- row that is there is its work.
    ON CONFLICT (execution_id) DO NOTHING
)

-- part: idempotency
-- With the fence of the execution that it names: a key without its execution would refuse every retry.
-- No ON CONFLICT: two requests with one key are a conflict that the caller must learn about.
idempotency_out AS (
    INSERT INTO noetl.idempotency (tenant_id, organization_id, idempotency_key, request_digest, execution_id)
    SELECT t.tenant_id, t.organization_id, t.idempotency_key, t.request_digest, t.execution_id
    FROM json_to_recordset(:idempotency::json) AS t(
        shard_id integer, tenant_id text, organization_id text, idempotency_key text, request_digest text,
        execution_id bigint)
    WHERE t.shard_id IN (SELECT moved.shard_id FROM moved)
)

-- part: end
SELECT moved.shard_id FROM moved
