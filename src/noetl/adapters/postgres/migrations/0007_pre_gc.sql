-- Collection of payloads that nothing names.  Runs before the new code; safe while old code runs.  Old code does not
-- renew what it uses again: nothing may be collected while it still runs.

-- When a payload was last put.  One value for the rows that are there, which rewrites none of them: their grace begins
-- with this migration.
ALTER TABLE noetl.payload ADD COLUMN renewed_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE noetl.payload ALTER COLUMN renewed_at SET DEFAULT clock_timestamp();

-- Objects of any store that nothing named when they were last looked at.
CREATE TABLE noetl.payload_candidate (
    store                text             NOT NULL,
    tenant_id            text             NOT NULL,
    organization_id      text             NOT NULL,
    sha256               text COLLATE "C" NOT NULL,
    candidate_at         timestamptz      NOT NULL,
    confirmed_at         timestamptz      NOT NULL,
    PRIMARY KEY (store, tenant_id, organization_id, sha256),
    CONSTRAINT chk_payload_candidate_times CHECK (candidate_at <= confirmed_at)
);

-- What a payload in a distant store names, so that it is read once: bytes behind a digest never change.
CREATE TABLE noetl.payload_names (
    sha256               text COLLATE "C" PRIMARY KEY,
    names                text[]           NOT NULL
);
