-- Where results are and which led to which.  Runs before the new code; safe while old code runs, whose results point to
-- nothing.

-- A result by its id, which is that of the event that names it.
CREATE INDEX idx_event_result ON noetl.event (event_id) WHERE result IS NOT NULL;

-- From a result to those that it led to: `parent_event_id` of an event with a result is the id of the one before it.
CREATE INDEX idx_result_ref_parent_chain ON noetl.event (parent_event_id) WHERE parent_event_id IS NOT NULL;

-- One row for each result that has a payload: the ledger, seen as its results.  Nothing is written besides the event, so
-- that a row is there when its event is, is gone when it is, and cannot say anything else.
-- Postgres reads no document with an escaped NUL; nothing that is wanted here has one, so another mark in its place does
-- no harm.  Numbers may come from outside: what is none is left out.
CREATE VIEW noetl.result_ref (
    ref_id, execution_id, position, tenant_id, organization_id, event_type, status, step, task, command_id, stage_id,
    frame_id, kind, uri, sha256, media_type, bytes, row_count, schema_digest, store_tier, physical_address, correlation,
    auth_reference, parent_ref_id, created_at) AS
SELECT e.event_id, e.execution_id, e.position, e.tenant_id, e.organization_id, e.event_type, r.status, m.step, m.task,
    e.command_id, e.stage_id, e.frame_id, f.kind, f.uri, f.sha256, f.media_type,
    CASE WHEN f.bytes ~ '^[0-9]{1,18}$' THEN f.bytes::bigint END,
    CASE WHEN f.row_count ~ '^[0-9]{1,18}$' THEN f.row_count::bigint END,
    f.schema_digest, f.store,
    CASE WHEN f.store = 'db' THEN 'noetl.payload/' || f.sha256
         WHEN f.store IS NOT NULL AND split_part(f.uri, '/', 6) <> '' THEN
             replace(split_part(f.uri, '/', 4) || '/' || split_part(f.uri, '/', 6), '.', '%2E')
             || CASE WHEN f.store = 'file' THEN '/' || left(f.sha256, 2) || '/' ELSE '/' END || f.sha256 END,
    CASE WHEN e.stage_id IS NOT NULL AND e.frame_id IS NOT NULL THEN json_build_object(
        'loop_epoch', e.stage_id, 'index', CASE WHEN m.first ~ '^[0-9]{1,18}$' THEN m.first::bigint END,
        'page', CASE WHEN e.frame_id ~ '/[0-9]{1,18}$' THEN substring(e.frame_id FROM '[0-9]+$')::bigint END) END,
    m.credentials, e.parent_event_id, e.event_time
FROM noetl.event AS e
CROSS JOIN LATERAL (
    SELECT replace(e.result::text, '\u0000', '\u0001')::json AS result,
           replace(e.meta::text, '\u0000', '\u0001')::json AS meta) AS said
CROSS JOIN LATERAL json_to_record(said.result) AS r(status text, reference json)
CROSS JOIN LATERAL json_to_record(said.meta) AS m(step text, task text, first text, credentials text[])
CROSS JOIN LATERAL json_to_record(r.reference) AS f(
    kind text, uri text, sha256 text, media_type text, bytes text, store text, row_count text, schema_digest text)
WHERE e.result IS NOT NULL AND f.uri <> '' AND f.sha256 <> '';

-- The same for whoever may read the published views.
CREATE VIEW noetl_views.result_refs WITH (security_barrier = true) AS
SELECT ref_id, execution_id, position, tenant_id, organization_id, event_type, status, step, task, command_id, stage_id,
       frame_id, kind, uri, sha256, media_type, bytes, row_count, schema_digest, store_tier, physical_address,
       correlation, auth_reference, parent_ref_id, created_at
FROM noetl.result_ref;
