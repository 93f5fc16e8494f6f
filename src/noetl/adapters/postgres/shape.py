"""The function behind the CHECK of a result's shape, generated from the one schema in `core/reference.py`.

The text of a canonical result is exactly the text of its members in their order, so no other key, order or spacing
can be stored.  Postgres cannot look into a document with an escaped NUL; such a result is examined with another
character in its place, which changes neither its members nor its length.  It is a function because Postgres reads
the tree of a CHECK expression again for every statement: as an expression it cost a quarter of a commit."""

from __future__ import annotations

from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from noetl.core.reference import RESULT_SHAPE


def result_function_sql() -> str:
    """The statement that makes `noetl.is_result`."""
    declared = "\n".join(f"    {member} json;" for member in RESULT_SHAPE)
    taken = "\n".join(f"    {member} := document->'{member}';" for member in RESULT_SHAPE)
    typed = "\n        AND ".join(
        f"json_typeof({member}) IN ({', '.join(map(_quoted, types))})" for member, types in RESULT_SHAPE.items()
    )
    pieces = "\n            || ".join(
        f"""'{"{" if number == 0 else ","}"{member}":' || {member}::text"""
        for number, member in enumerate(RESULT_SHAPE)
    )
    return rf"""CREATE FUNCTION noetl.is_result(result json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    document json := CASE WHEN strpos(result::text, '\u0000') = 0 THEN result
                          ELSE replace(result::text, '\u0000', '\u0001')::json END;
{declared}
BEGIN
    IF octet_length(result::text) > {EVENT_RESULT_BYTES_MAX} OR json_typeof(document) <> 'object' THEN
        RETURN false;
    END IF;
{taken}
    RETURN ({typed}
        AND document::text = {pieces} || '}}') IS TRUE;
END
$$;"""


def _quoted(word: str) -> str:
    return f"'{word}'"
