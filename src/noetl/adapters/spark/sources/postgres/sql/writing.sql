-- name: target
-- The table that a name means, with its schema.
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)

-- name: has_unique_key
-- An index that ON CONFLICT can use for exactly these columns: not one that is checked only at the end.
SELECT EXISTS (
  SELECT FROM pg_index i
  WHERE i.indrelid = $1::text::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    AND i.indexprs IS NULL
    AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")
         FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
         WHERE k.place <= i.indnkeyatts) = $2::text[])

-- name: lock
-- Whoever makes the book of writes, a stage or a commit of the same name is alone with it until the transaction ends:
-- CREATE IF NOT EXISTS of two sessions at once fails in one of them, and two commits of one write would both insert.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))

-- name: make_book
-- Which writes are open and which were committed: a commit whose answer was lost is not done twice, and the stage of a
-- dead run can be told from the stage of a living one.
CREATE TABLE IF NOT EXISTS {book} (
  run_id text PRIMARY KEY,
  write_id text NOT NULL,
  target text NOT NULL,
  stage text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  touched_at timestamptz NOT NULL DEFAULT now(),
  committed_at timestamptz,
  row_count bigint
)

-- name: make_book_key
-- Whatever goes wrong above: the server itself commits a write into a table once.
CREATE UNIQUE INDEX IF NOT EXISTS noetl_writes_committed ON {book} (target, write_id) WHERE committed_at IS NOT NULL

-- name: has_book
SELECT to_regclass($1) IS NOT NULL

-- name: open_write
INSERT INTO {book} AS known (run_id, write_id, target, stage) VALUES ($1, $2, $3, $4)
ON CONFLICT (run_id) DO UPDATE SET touched_at = now() WHERE known.committed_at IS NULL

-- name: touch_write
UPDATE {book} SET touched_at = now() WHERE run_id = $1 AND committed_at IS NULL

-- name: is_committed
-- The name of a write counts for one table: many tables may have a write of the same day.
SELECT EXISTS (SELECT FROM {book} WHERE write_id = $1 AND target = $2 AND committed_at IS NOT NULL)

-- name: is_open
SELECT EXISTS (SELECT FROM {book} WHERE run_id = $1 AND committed_at IS NULL)

-- name: make_stage
-- The columns as the target has them, and which try of which task a row is from.
CREATE UNLOGGED TABLE IF NOT EXISTS {stage} AS SELECT {columns}, NULL::text AS {task} FROM {target} WITH NO DATA

-- name: require_key
-- Rows without a key would be written again by every repetition.
ALTER TABLE {stage} ALTER COLUMN {column} SET NOT NULL

-- name: counted
-- A server that crashed has emptied its unlogged tables: what was staged is counted before it is moved.
SELECT {task} AS task, count(*) AS count FROM {stage} WHERE {task} = ANY($1::text[]) GROUP BY {task}

-- name: clear_target
DELETE FROM {target}

-- name: truncate_target
TRUNCATE TABLE {target}

-- name: move
INSERT INTO {target} ({columns}) SELECT {columns} FROM {stage} WHERE {task} = ANY($1::text[])

-- name: move_new
-- The key is the user's: a row that is there already stays as it is.
INSERT INTO {target} ({columns}) SELECT {columns} FROM {stage} WHERE {task} = ANY($1::text[])
ORDER BY {key} ON CONFLICT ({key}) DO NOTHING

-- name: move_over
-- In the order of the key, so that two writes of the same rows wait for each other and do not deadlock.
INSERT INTO {target} ({columns}) SELECT {columns} FROM {stage} WHERE {task} = ANY($1::text[])
ORDER BY {key} ON CONFLICT ({key}) DO UPDATE SET {changes}

-- name: change
{column} = EXCLUDED.{column}

-- name: drop_stage
DROP TABLE IF EXISTS {stage}

-- name: close_write
INSERT INTO {book} AS known (run_id, write_id, target, stage, committed_at, row_count)
VALUES ($1, $2, $3, $4, now(), $5)
ON CONFLICT (run_id) DO UPDATE SET committed_at = now(), row_count = EXCLUDED.row_count

-- name: forget_write
DELETE FROM {book} WHERE run_id = $1 AND committed_at IS NULL

-- name: left_over
-- Open writes that nobody has touched for long: their runs are dead.
SELECT run_id, stage FROM {book}
WHERE committed_at IS NULL AND touched_at < now() - make_interval(secs => $1) ORDER BY touched_at

-- name: forget_old
DELETE FROM {book} WHERE committed_at < now() - make_interval(days => $1)
