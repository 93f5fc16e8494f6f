-- name: make_roles
-- The roles of users: one owns their data, one reads what is published.  They can do nothing else on this server.
DO $$
DECLARE
    wanted name;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['noetl_data', 'noetl_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I', wanted);
        END IF;
        EXECUTE format(
            'ALTER ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', wanted);
    END LOOP;
END
$$

-- name: limit_data
-- Users may never take the connections that the control plane needs.
ALTER ROLE noetl_data CONNECTION LIMIT 60

-- name: limit_reader
ALTER ROLE noetl_reader CONNECTION LIMIT 10

-- name: aim_reader
ALTER ROLE noetl_reader SET search_path = noetl_views

-- name: calm_reader
-- A forgotten query must not hold back the clean-up of the ledger's tables.
ALTER ROLE noetl_reader SET statement_timeout = '60s'

-- name: bind_reader
ALTER ROLE noetl_reader SET default_transaction_read_only = on

-- name: data_exists
SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = 'noetl_data') AS found

-- name: make_data
CREATE DATABASE noetl_data OWNER noetl_data

-- name: close_data
REVOKE ALL ON DATABASE noetl_data FROM PUBLIC

-- name: close_control
-- Neither connect nor make temporary tables; migrating lets the reader in.
REVOKE ALL ON DATABASE noetl FROM PUBLIC

-- name: close_others
-- A session in template1 would stop every CREATE DATABASE.
REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC

-- name: forbid_objects
-- Large objects belong to no table and need no right by default: a reader could fill the disk with them.
REVOKE EXECUTE ON FUNCTION pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid),
    pg_catalog.lo_from_bytea(oid, bytea) FROM PUBLIC
