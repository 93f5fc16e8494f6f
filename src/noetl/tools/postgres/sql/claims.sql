-- name: begin
-- The number is taken at the beginning: a claim that finds nothing to change has one too.  A commit that the server may
-- forget would give the rows to somebody else after they were worked off.  A worker that is cut off keeps its rows
-- locked: others of its loop must be able to see that (the name), and the server must not wait for it for ever.
SELECT pg_current_xact_id()::text AS xid,
       set_config('application_name', $1, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                       ELSE current_setting('synchronous_commit') END, true)

-- name: status
SELECT pg_xact_status($1::text::xid8)

-- name: others
-- Open claims of the same loop.  What other roles do is not shown, and a loop has one role.
SELECT pid::text || '/' || backend_start::text FROM pg_stat_activity
WHERE starts_with(application_name, $1) AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()

-- name: end
-- One's own connections may be ended without further rights.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = $1 AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
