-- What users register: credentials and playbooks.  Runs before the new code; safe while old code runs.

-- Named secrets, sealed by the server and opened in a worker.  Only `ciphertext` is secret; `key_id` names the key.
CREATE TABLE noetl.credential (
    tenant_id            text             NOT NULL,
    organization_id      text             NOT NULL,
    name                 text COLLATE "C" NOT NULL,
    type                 text             NOT NULL,
    description          text,
    tags                 text[]           NOT NULL DEFAULT '{}',
    key_id               text             NOT NULL,
    nonce                bytea            NOT NULL,
    ciphertext           bytea            NOT NULL,
    created_at           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    updated_at           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, organization_id, name),
    CONSTRAINT chk_credential_owner CHECK (tenant_id <> '' AND organization_id <> '' AND name <> ''),
    CONSTRAINT chk_credential_nonce CHECK (octet_length(nonce) = 12)
);

-- Playbooks by path and version; the text is the payload that `payload` refers to.
CREATE TABLE noetl.catalog (
    tenant_id            text             NOT NULL,
    organization_id      text             NOT NULL,
    path                 text COLLATE "C" NOT NULL,
    version              integer          NOT NULL,
    sha256               text             NOT NULL,
    media_type           text             NOT NULL,
    name                 text             NOT NULL,
    payload              json             NOT NULL,
    created_at           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, organization_id, path, version),
    CONSTRAINT chk_catalog_owner CHECK (tenant_id <> '' AND organization_id <> '' AND path <> ''),
    CONSTRAINT chk_catalog_version CHECK (version >= 1)
);
-- A version is its content: the same text registered twice, also at the same moment, is one version.
CREATE UNIQUE INDEX uidx_catalog_content ON noetl.catalog (tenant_id, organization_id, path, sha256);
