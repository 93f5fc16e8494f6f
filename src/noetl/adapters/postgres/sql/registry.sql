-- name: put_credential
-- Setting a credential again replaces it: the conflict on its name is the second half of the request.
INSERT INTO noetl.credential (tenant_id, organization_id, name, type, description, tags, key_id, nonce, ciphertext)
VALUES (:tenant_id::text, :organization_id::text, :name::text, :type::text, :description::text, :tags::text[],
        :key_id::text, :nonce::bytea, :ciphertext::bytea)
ON CONFLICT (tenant_id, organization_id, name) DO UPDATE
SET type = excluded.type, description = excluded.description, tags = excluded.tags, key_id = excluded.key_id,
    nonce = excluded.nonce, ciphertext = excluded.ciphertext, updated_at = clock_timestamp()

-- name: credential
SELECT tenant_id, organization_id, name, type, description, tags, key_id, nonce, ciphertext, updated_at
FROM noetl.credential
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND name = :name::text

-- name: credentials
SELECT tenant_id, organization_id, name, type, description, tags, key_id, ''::bytea AS nonce, ''::bytea AS ciphertext,
       updated_at
FROM noetl.credential
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text
ORDER BY name

-- name: delete_credential
DELETE FROM noetl.credential
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND name = :name::text
RETURNING name

-- name: register
-- The known version, or the next one.  Two at once may both count to the same number, or both add the same content;
-- the unique indexes refuse the later one, and it asks again.  A lock would not help: the statement looks at the
-- table as it was before it could wait for the lock.  A known version gets the warnings of today: what was missing
-- may be there by now.
WITH known AS (
    SELECT tenant_id, organization_id, path, version, sha256, media_type, name, payload, created_at, catalog_id,
           scripts, scripts_sha256
    FROM noetl.catalog
    WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND path = :path::text
      AND sha256 = :sha256::text AND scripts_sha256 = :scripts_sha256::text
), warned AS (
    UPDATE noetl.catalog
    SET warnings = :warnings::text::json
    WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND path = :path::text
      AND sha256 = :sha256::text AND scripts_sha256 = :scripts_sha256::text AND warnings::text <> :warnings::text
), added AS (
    INSERT INTO noetl.catalog (tenant_id, organization_id, path, version, sha256, media_type, name, payload,
                               catalog_id, scripts, scripts_sha256, warnings)
    SELECT :tenant_id::text, :organization_id::text, :path::text,
           coalesce((SELECT max(version) FROM noetl.catalog
                     WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text
                       AND path = :path::text), 0) + 1,
           :sha256::text, :media_type::text, :name::text, :payload::text::json,
           :catalog_id::bigint, :scripts::text::json, :scripts_sha256::text, :warnings::text::json
    WHERE NOT EXISTS (SELECT FROM known)
    RETURNING tenant_id, organization_id, path, version, sha256, media_type, name, payload, created_at, catalog_id,
              scripts, scripts_sha256
)
SELECT tenant_id, organization_id, path, version, sha256, media_type, name, payload::text AS payload, created_at,
       catalog_id, scripts::text AS scripts, scripts_sha256, :warnings::text AS warnings, false AS is_new
FROM known
UNION ALL
SELECT tenant_id, organization_id, path, version, sha256, media_type, name, payload::text, created_at,
       catalog_id, scripts::text, scripts_sha256, :warnings::text, true
FROM added

-- name: catalog_entry
-- Without a version the newest one.
SELECT tenant_id, organization_id, path, version, sha256, media_type, name, payload::text AS payload, created_at,
       catalog_id, scripts::text AS scripts, scripts_sha256, warnings::text AS warnings
FROM noetl.catalog
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND path = :path::text
  AND (:version::integer IS NULL OR version = :version::integer)
ORDER BY version DESC
LIMIT 1

-- name: catalog_entry_by_id
SELECT tenant_id, organization_id, path, version, sha256, media_type, name, payload::text AS payload, created_at,
       catalog_id, scripts::text AS scripts, scripts_sha256, warnings::text AS warnings
FROM noetl.catalog
WHERE catalog_id = :catalog_id::bigint AND tenant_id = :tenant_id::text AND organization_id = :organization_id::text

-- name: catalog_paths
-- The newest version of each path.
SELECT DISTINCT ON (path)
       tenant_id, organization_id, path, version, sha256, media_type, name, payload::text AS payload, created_at,
       catalog_id, scripts::text AS scripts, scripts_sha256, warnings::text AS warnings
FROM noetl.catalog
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text
  AND starts_with(path, :prefix::text)
ORDER BY path, version DESC
LIMIT :rows::integer

-- name: catalog_versions
SELECT tenant_id, organization_id, path, version, sha256, media_type, name, payload::text AS payload, created_at,
       catalog_id, scripts::text AS scripts, scripts_sha256, warnings::text AS warnings
FROM noetl.catalog
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND path = :path::text
ORDER BY version DESC
LIMIT :rows::integer
