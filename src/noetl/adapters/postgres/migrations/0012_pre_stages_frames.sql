-- Loops and their frames as rows.  Runs before the new code; safe while old code runs.

-- One row for each stage: the ledger, seen as its loops, its fan-outs, and the steps that a fan-out leads to, which reduce
-- what the shards left.  Nothing is written besides the events, so that a row cannot say anything else than they do.
-- `parent_stage_id` is the stage that led to it.  A loop that began before there were `stage.opened` and `stage.closed` has
-- its beginning and its end in their place.  Postgres reads no document with an escaped NUL; nothing that is wanted here
-- has one, so another mark in its place does no harm.
CREATE VIEW noetl.stage (
    execution_id, stage_id, tenant_id, organization_id, step, run, kind, source, status, parent_stage_id, loop_event_id,
    opened_event_id, closed_event_id, total, done, failed, frames, frame_policy, opened_at, closed_at) AS
SELECT o.execution_id, o.stage_id, o.tenant_id, o.organization_id, m.step, m.run,
    coalesce(m.stage_kind, CASE WHEN sm.policy->>'shard_retries' IS NOT NULL THEN 'fanout' ELSE 'loop' END),
    coalesce(m.source, CASE WHEN sm.cursor IS NOT NULL THEN 'cursor' ELSE 'collection' END),
    CASE WHEN c.event_id IS NOT NULL THEN CASE WHEN cm.status = 'ok' THEN 'closed' ELSE cm.status END
         WHEN d.event_id IS NOT NULL AND o.event_type = 'stage.opened' THEN 'sealing'
         WHEN d.event_id IS NOT NULL THEN CASE WHEN e.status = 'ok' THEN 'closed' ELSE e.status END
         ELSE 'open' END,
    chain.stage_id, s.event_id, o.event_id,
    CASE WHEN o.event_type = 'stage.opened' THEN c.event_id ELSE d.event_id END,
    coalesce(e.total, sm.total), e.done, e.failed, e.frames,
    CASE WHEN sm.policy IS NOT NULL THEN json_strip_nulls(json_build_object(
        'max_in_flight', sm.policy->'max_in_flight', 'max_rows', sm.policy->'frame_rows',
        'process', coalesce(sm.policy->>'process', 'row'), 'row_concurrency', sm.policy->'row_concurrency',
        'max_attempts', sm.policy->'max_attempts', 'retry_mode', sm.policy->'retry_mode',
        'max_seconds', sm.policy->'max_seconds', 'max_bytes', sm.policy->'max_bytes',
        'max_distance', sm.policy->'max_distance', 'max_shard_retries', sm.policy->'shard_retries')) END,
    o.event_time,
    CASE WHEN o.event_type = 'stage.opened' THEN c.event_time ELSE d.event_time END
FROM noetl.event AS o
CROSS JOIN LATERAL json_to_record(replace(o.meta::text, '\u0000', '\u0001')::json)
    AS m(step text, run bigint, stage_kind text, source text, parents json)
LEFT JOIN LATERAL (
    SELECT x.event_id, x.meta FROM noetl.event AS x
    WHERE x.execution_id = o.execution_id AND x.transition_key = 'loop.started/' || o.stage_id) AS s ON true
LEFT JOIN LATERAL json_to_record(replace(s.meta::text, '\u0000', '\u0001')::json)
    AS sm(total bigint, cursor json, policy json) ON true
LEFT JOIN LATERAL (
    SELECT x.event_id, x.event_time, x.meta FROM noetl.event AS x
    WHERE x.execution_id = o.execution_id AND x.transition_key = 'loop.done/' || o.stage_id) AS d ON true
LEFT JOIN LATERAL json_to_record(replace(d.meta::text, '\u0000', '\u0001')::json)
    AS e(status text, total bigint, done bigint, failed bigint, frames bigint) ON true
LEFT JOIN LATERAL (
    SELECT x.event_id, x.event_time, x.meta FROM noetl.event AS x
    WHERE x.execution_id = o.execution_id AND x.transition_key = 'stage.closed/' || o.stage_id) AS c ON true
LEFT JOIN LATERAL json_to_record(c.meta) AS cm(status text) ON true
LEFT JOIN LATERAL (
    SELECT x.stage_id FROM noetl.event AS x
    WHERE x.execution_id = o.execution_id AND x.stage_id IS NOT NULL AND x.position < o.position
      AND x.event_type = 'loop.done' AND regexp_replace(x.stage_id, '#[0-9]+$', '') IN (SELECT json_array_elements_text(m.parents))
    ORDER BY x.position DESC LIMIT 1) AS chain ON true
WHERE o.event_type = 'stage.opened' OR (o.event_type = 'loop.started' AND NOT EXISTS (
    SELECT FROM noetl.event AS x
    WHERE x.execution_id = o.execution_id AND x.transition_key = 'stage.opened/' || o.stage_id))
UNION ALL
-- Several fan-outs may meet in one step: its parent is the one that was last.
(SELECT DISTINCT ON (i.execution_id, i.command_id) i.execution_id, i.command_id, i.tenant_id, i.organization_id, m.step, m.run, 'reduce', 'references',
    CASE WHEN t.event_type = 'command.completed' THEN 'closed' WHEN t.event_type = 'command.failed' THEN 'failed'
         ELSE 'open' END,
    f.stage_id, NULL, i.event_id, t.event_id, (f.meta->'fanin'->>'succeeded')::bigint, NULL, NULL, NULL, NULL,
    i.event_time, t.event_time
FROM noetl.event AS f
JOIN noetl.event AS i
    ON i.execution_id = f.execution_id AND i.position > f.position AND i.event_type = 'command.issued'
CROSS JOIN LATERAL json_to_record(replace(i.meta::text, '\u0000', '\u0001')::json)
    AS m(step text, run bigint, kind text, parents json)
LEFT JOIN LATERAL (
    SELECT x.event_id, x.event_type, x.event_time FROM noetl.event AS x
    WHERE x.execution_id = i.execution_id AND x.transition_key = 'command.terminal/' || i.command_id) AS t ON true
WHERE f.event_type = 'loop.fanin.completed' AND m.kind = 'step'
  AND f.meta->>'step' IN (SELECT json_array_elements_text(m.parents))
  AND NOT EXISTS (
    SELECT FROM noetl.event AS x
    WHERE x.execution_id = f.execution_id AND x.event_type = 'loop.fanin.completed' AND x.position > f.position
      AND x.position < i.position AND x.meta->>'step' = f.meta->>'step')
ORDER BY i.execution_id, i.command_id, f.position DESC);

-- One row for each frame.  The frames of a stage are a chain: `parent_frame_id` is the one that was given out before, of
-- a cursor by the same slot.  The command of a frame is the frame; its attempt is the fencing token.  When no row of a loop
-- is left to run, a frame without an end was taken back (`withdrawn`): its loop ended before it.
CREATE VIEW noetl.frame (
    execution_id, frame_id, stage_id, tenant_id, organization_id, step, number, parent_frame_id, command_id,
    claimed_event_id, terminal_event_id, status, attempt, owner_session_id, slot, first_row, row_count, concurrency,
    succeeded, failed, skipped, wall_ms, output_sha256, dispatched_at, started_at, ended_at) AS
SELECT d.execution_id, d.frame_id, d.stage_id, d.tenant_id, d.organization_id, m.step, m.number,
    CASE WHEN m.slot IS NOT NULL THEN before.frame_id
         WHEN m.number > 1 THEN d.stage_id || '/' || (m.number - 1) END,
    d.frame_id, d.event_id, t.event_id,
    CASE WHEN t.event_type = 'frame.committed' THEN 'committed' WHEN t.event_type = 'frame.failed' THEN 'failed'
         WHEN EXISTS (
             SELECT FROM noetl.event AS x
             WHERE x.execution_id = d.execution_id AND x.transition_key = 'loop.done/' || d.stage_id) THEN 'withdrawn'
         WHEN s.event_type = 'frame.started' THEN 'started' WHEN s.event_type = 'frame.abandoned' THEN 'abandoned'
         ELSE 'dispatched' END,
    coalesce(sm.attempt, 0), sm.session::bigint, m.slot, m.first,
    coalesce(om.success + om.failed + om.skipped, m.rows), m.concurrency, om.success, om.failed, om.skipped,
    (t.meta->'profile'->>'wall_ms')::double precision, t.result->'reference'->>'sha256', d.event_time, CASE WHEN s.event_type = 'frame.started' THEN s.event_time END, t.event_time
FROM noetl.event AS d
CROSS JOIN LATERAL json_to_record(d.meta)
    AS m(step text, number bigint, attempt integer, slot integer, first bigint, rows bigint, concurrency integer)
LEFT JOIN LATERAL (
    SELECT o.event_id, o.event_type, o.event_time, o.meta FROM noetl.event AS o
    WHERE o.execution_id = d.execution_id AND o.frame_id = d.frame_id
      AND o.event_type IN ('frame.started', 'frame.abandoned')
    ORDER BY o.position DESC LIMIT 1) AS s ON true
LEFT JOIN LATERAL json_to_record(s.meta) AS sm(attempt integer, session text) ON true
LEFT JOIN LATERAL (
    SELECT o.event_id, o.event_type, o.event_time,
           replace(o.meta::text, '\u0000', '\u0001')::json AS meta,
           replace(o.result::text, '\u0000', '\u0001')::json AS result
    FROM noetl.event AS o
    WHERE o.execution_id = d.execution_id AND o.transition_key = 'frame.terminal/' || d.frame_id) AS t ON true
LEFT JOIN LATERAL json_to_record(t.meta->'outcomes') AS om(success bigint, failed bigint, skipped bigint) ON true
LEFT JOIN LATERAL (
    SELECT o.frame_id FROM noetl.event AS o
    WHERE m.slot IS NOT NULL AND o.execution_id = d.execution_id AND o.stage_id = d.stage_id
      AND o.position < d.position AND o.event_type = 'frame.dispatched' AND (o.meta->>'slot')::integer = m.slot
    ORDER BY o.position DESC LIMIT 1) AS before ON true
WHERE d.event_type = 'frame.dispatched' AND m.attempt = 1;

-- The same for whoever may read the published views.
CREATE VIEW noetl_views.stages WITH (security_barrier = true) AS
SELECT execution_id, stage_id, tenant_id, organization_id, step, run, kind, source, status, parent_stage_id,
       loop_event_id, opened_event_id, closed_event_id, total, done, failed, frames, frame_policy, opened_at, closed_at
FROM noetl.stage;

CREATE VIEW noetl_views.frames WITH (security_barrier = true) AS
SELECT execution_id, frame_id, stage_id, tenant_id, organization_id, step, number, parent_frame_id, command_id,
       claimed_event_id, terminal_event_id, status, attempt, owner_session_id, slot, first_row, row_count, concurrency,
       succeeded, failed, skipped, wall_ms, output_sha256, dispatched_at, started_at, ended_at
FROM noetl.frame;
