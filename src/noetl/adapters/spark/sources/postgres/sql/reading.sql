-- name: session
-- Texts as the decoder expects them, whatever the database or the role has set.
SELECT set_config('datestyle', 'ISO, YMD', false), set_config('timezone', 'UTC', false),
       set_config('intervalstyle', 'postgres', false), set_config('bytea_output', 'hex', false),
       set_config('extra_float_digits', '1', false), set_config('standard_conforming_strings', 'on', false)

-- name: begin
-- One statement sees one moment in any case; with an exported snapshot all partitions see the same one.  Nothing may be
-- changed by a read: Spark repeats tasks.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: snapshot
SET TRANSACTION SNAPSHOT {snapshot}

-- name: export_snapshot
SELECT pg_export_snapshot()

-- name: describe_relation
-- The columns of a relation; of a domain the type below it counts.
SELECT a.attname AS name,
       CASE WHEN t.typtype = 'd' THEN b.typname ELSE t.typname END AS type,
       CASE WHEN t.typtype = 'd' THEN bn.nspname ELSE n.nspname END AS schema,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier,
       e.typname AS element,
       en.nspname AS element_schema,
       format_type(a.atttypid, a.atttypmod) AS title,
       t.typcategory = 'S' OR t.typtype = 'e' AS is_textual,
       a.attnotnull AS is_required,
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL AS has_default,
       a.attgenerated <> '' OR a.attidentity = 'a' AS is_generated
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_namespace bn ON bn.oid = b.typnamespace
LEFT JOIN pg_type e ON e.oid = COALESCE(b.typelem, t.typelem)
                   AND (COALESCE(b.typcategory, t.typcategory) = 'A')
LEFT JOIN pg_namespace en ON en.oid = e.typnamespace
WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- name: view_of_query
-- A view knows the modifiers of its columns, such as the digits of a numeric.  It is rolled back at once.
CREATE TEMPORARY VIEW noetl_query AS {query}

-- name: relation
-- What a name is, and how many blocks the largest of its tables has.
SELECT c.oid::regclass::text AS name, c.relkind::text AS kind,
       COALESCE((SELECT max(pg_relation_size(p.relid::oid) / current_setting('block_size')::bigint)
                 FROM pg_partition_tree(c.oid) p WHERE p.isleaf),
                CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) / current_setting('block_size')::bigint
                     ELSE 0 END) AS blocks,
       current_setting('block_size')::bigint AS block_bytes
FROM pg_class c WHERE c.oid = to_regclass($1)

-- name: blocks_from
ctid >= {low}::tid

-- name: blocks_before
ctid < {high}::tid

-- name: bounds_of_numbers
-- Whole numbers stay whole: the bound of a range is a value that the column could have.
SELECT place::text AS bound
FROM (SELECT DISTINCT trunc(low + (high - low) * part / $1::int) AS place
      FROM (SELECT min({column})::numeric AS low, max({column})::numeric AS high FROM {source}) ends,
           generate_series(1, $1::int - 1) part
      WHERE low IS NOT NULL) cut ORDER BY place

-- name: bounds_of_fractions
SELECT place::text AS bound
FROM (SELECT DISTINCT low + (high - low) * part / $1::int AS place
      FROM (SELECT min({column})::float8 AS low, max({column})::float8 AS high FROM {source}
            WHERE {column}::float8 < 'Infinity' AND {column}::float8 > '-Infinity') ends,
           generate_series(1, $1::int - 1) part
      WHERE low IS NOT NULL) cut ORDER BY place

-- name: bounds_of_times
-- As text alone: times of the server reach beyond those of the driver.  The part is a fraction, since a long interval
-- cannot be multiplied.
SELECT place::text AS bound
FROM (SELECT DISTINCT (low + (high - low) * (part::float8 / $1::int))::{type} AS place
      FROM (SELECT min({column})::timestamp AS low, max({column})::timestamp AS high FROM {source}
            WHERE isfinite({column})) ends,
           generate_series(1, $1::int - 1) part
      WHERE low IS NOT NULL) cut ORDER BY place

-- name: query_source
-- The query may end with a comment.
({query}
) AS noetl_query

-- name: rows
SELECT {columns} FROM {source} WHERE {condition}

-- name: prepared_rows
-- Without columns: nobody reads it, so no types have to be looked up.
SELECT FROM ({rows}
) AS noetl_rows

-- name: array_text
to_json({column}::text[])
