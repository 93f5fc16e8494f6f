-- name: lock
-- Serialises migrating processes; transaction-level, so that it works behind a pooler.
SELECT pg_advisory_xact_lock(7305809155)

-- name: limit_waiting
SET LOCAL lock_timeout = '5s'

-- name: make_schema
CREATE SCHEMA IF NOT EXISTS noetl

-- name: make_table
CREATE TABLE IF NOT EXISTS noetl.migration (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())

-- name: applied
SELECT number FROM noetl.migration

-- name: record
INSERT INTO noetl.migration (number, name) VALUES (:number::integer, :title::text)

-- name: server_version
SELECT current_setting('server_version_num') AS version

-- name: exists
SELECT to_regclass(:table_name::text) AS found

-- name: make_shards
INSERT INTO noetl.execution_shard (shard_id)
SELECT generate_series(0, :shard_count::integer - 1)
-- A shard that exists keeps its counter and epoch.
ON CONFLICT (shard_id) DO NOTHING
