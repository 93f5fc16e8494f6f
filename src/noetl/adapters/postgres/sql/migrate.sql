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

-- name: publish
-- Lets the reader in, and nobody else.  A role that may not make roles leaves that to the administrator: the next
-- `noetl migrate` finds the role and lets it in.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'noetl_reader')
        AND (SELECT rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user)
    THEN
        BEGIN
            -- Without a password: a server that asks for one admits nobody yet.
            CREATE ROLE noetl_reader LOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- another database of the same server was migrated at the same moment
        END;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'noetl_reader') THEN
        GRANT USAGE ON SCHEMA noetl_views TO noetl_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA noetl_views TO noetl_reader;
        -- Everybody may have been shut out of the database, and only its owner can let somebody in.
        IF pg_catalog.pg_has_role(
            current_user, (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()), 'MEMBER')
        THEN
            EXECUTE format('GRANT CONNECT ON DATABASE %I TO noetl_reader', current_database());
        END IF;
    END IF;
END
$$
