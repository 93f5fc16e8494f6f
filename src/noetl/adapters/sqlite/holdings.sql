-- The lists of the collector.

-- name: made
PRAGMA cache_size = -65536;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE object (
    store INTEGER, owner INTEGER, digest BLOB, bytes INTEGER, renewed_at REAL, media_type TEXT,
    PRIMARY KEY (store, owner, digest)) WITHOUT ROWID;
CREATE TABLE mark (id INTEGER PRIMARY KEY, owner INTEGER, digest BLOB, UNIQUE (owner, digest));
CREATE TABLE missing (id INTEGER PRIMARY KEY, owner INTEGER, digest BLOB, store TEXT, UNIQUE (owner, digest));

-- name: hold
-- A store may hold the same payload in several forms, sealed and not: they go together, and the youngest counts.
INSERT INTO object (store, owner, digest, bytes, renewed_at, media_type) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (store, owner, digest) DO UPDATE
SET bytes = bytes + excluded.bytes, renewed_at = max(renewed_at, excluded.renewed_at)

-- name: mark
-- Named before: once is enough.
INSERT INTO mark (owner, digest) VALUES (?, ?) ON CONFLICT (owner, digest) DO NOTHING

-- name: miss
-- Missed before: once is enough.
INSERT INTO missing (owner, digest, store) VALUES (?, ?, ?) ON CONFLICT (owner, digest) DO NOTHING

-- name: missing
SELECT id, owner, digest, store FROM missing WHERE id > ? ORDER BY id LIMIT ?

-- name: marked
SELECT id, owner, digest FROM mark WHERE id > ? ORDER BY id LIMIT ?

-- name: found
SELECT 1 FROM object WHERE store = ? AND owner = ? AND digest = ?

-- name: unreachable
SELECT digest, bytes, renewed_at, media_type FROM object AS o
WHERE store = ? AND owner = ? AND digest > ?
  AND NOT EXISTS (SELECT 1 FROM mark AS m WHERE m.owner = o.owner AND m.digest = o.digest)
ORDER BY digest
LIMIT ?

-- name: counts
SELECT count(*), count((SELECT 1 FROM mark AS m WHERE m.owner = o.owner AND m.digest = o.digest)) FROM object AS o
