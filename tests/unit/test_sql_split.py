"""Cutting SQL text into statements."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from noetl.tools.sql.split import _CUTS, PLAIN, SPACE, fragments, speaks_to_client, statements, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;\n", ["SELECT 1", "SELECT 2"]),
        (";;\n ;SELECT 1;;", ["SELECT 1"]),
        ("", []),
        (" \n\t", []),
        ("-- only a comment", []),
        ("/* only; a comment */ -- and; another", []),
        ("SELECT 1; -- it's the end; really\n", ["SELECT 1"]),
        ("-- don't; stop\nSELECT 1", ["-- don't; stop\nSELECT 1"]),
        ("SELECT 1 -- a;\r; SELECT 2", ["SELECT 1 -- a;", "SELECT 2"]),
        ("SELECT /* a; /* b; */ c; */ 1; SELECT 2", ["SELECT /* a; /* b; */ c; */ 1", "SELECT 2"]),
        ("SELECT 'a;''b;'; SELECT ';'", ["SELECT 'a;''b;'", "SELECT ';'"]),
        ("SELECT 'a\\'; SELECT 2", ["SELECT 'a\\'", "SELECT 2"]),
        (r"SELECT E'a\';'; SELECT e'\\'; SELECT 3", [r"SELECT E'a\';'", r"SELECT e'\\'", "SELECT 3"]),
        (r"SELECT E'a'';\'; b'; SELECT 2", [r"SELECT E'a'';\'; b'", "SELECT 2"]),
        ("SELECT E'a'\n'b\\';' ; 2", ["SELECT E'a'\n'b\\';'", "2"]),
        ("SELECT E'a' -- c\n --d\n 'b\\';' ; 2", ["SELECT E'a' -- c\n --d\n 'b\\';'", "2"]),
        (r"SELECT E'a' 'b\'; 2", [r"SELECT E'a' 'b\'", "2"]),
        (r"SELECT U&'a\'; SELECT N'b\'; SELECT B'1'", [r"SELECT U&'a\'", r"SELECT N'b\'", "SELECT B'1'"]),
        (r"SELECT like'a\'; 2", [r"SELECT like'a\'", "2"]),
        ('SELECT "a;""b;" AS ";"; SELECT 2', ['SELECT "a;""b;" AS ";"', "SELECT 2"]),
        ("DO $$ BEGIN a; b; END $$; SELECT 2", ["DO $$ BEGIN a; b; END $$", "SELECT 2"]),
        ("SELECT $a$ ; $$ ; $b$ ; $a$; 2", ["SELECT $a$ ; $$ ; $b$ ; $a$", "2"]),
        ("SELECT $é1$;$é1$; 2", ["SELECT $é1$;$é1$", "2"]),
        ("SELECT $1$; $1$; 2", ["SELECT $1$", "$1$", "2"]),
        ("SELECT a$$b; SELECT c$$d; 3", ["SELECT a$$b", "SELECT c$$d", "3"]),
        ("SELECT $$a$$$$;$$; 2", ["SELECT $$a$$$$;$$", "2"]),
        ("SELECT $$a$$e'\\';'; 2", ["SELECT $$a$$e'\\';'", "2"]),
        ("SELECT a - b; SELECT c / d", ["SELECT a - b", "SELECT c / d"]),
        ("SELECT a -/* ; */ b; 2", ["SELECT a -/* ; */ b", "2"]),
        ("SELECT 1 %% 2; SELECT 'a%'", ["SELECT 1 %% 2", "SELECT 'a%'"]),
        ("SELECT 'never ends; 2", ["SELECT 'never ends; 2"]),
        ("SELECT $a$ never ends; 2", ["SELECT $a$ never ends; 2"]),
        ("SELECT 1 /* never /* ends; */ 2", ["SELECT 1 /* never /* ends; */ 2"]),
        ("SELECT E'ends with \\", ["SELECT E'ends with \\"]),
        (
            "CREATE RULE r AS ON INSERT TO t DO (DELETE FROM a; DELETE FROM b); SELECT 2",
            ["CREATE RULE r AS ON INSERT TO t DO (DELETE FROM a; DELETE FROM b)", "SELECT 2"],
        ),
        (
            "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; SELECT 2; END; 3",
            [
                "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; SELECT 2; END",
                "3",
            ],
        ),
        (
            "create procedure p() begin atomic insert into t values (1); end; BEGIN; SELECT 'atomic'; END",
            ["create procedure p() begin atomic insert into t values (1); end", "BEGIN", "SELECT 'atomic'", "END"],
        ),
    ],
)
def test_a_text_is_cut_at_its_top_level_semicolons(text: str, expected: list[str]) -> None:
    assert list(statements(text)) == expected
    assert ";".join(fragments(text)) == text


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("COPY t FROM STDIN", True),
        ("-- c\ncopy t (a, b) to stdout with csv", True),
        ("COPY (SELECT a FROM stdin) TO '/x'", False),
        ("COPY t FROM 'stdin'", False),
        ("COPY stdin FROM '/file'", False),
        ("SELECT a FROM stdin", False),
        ("INSERT INTO copy SELECT x FROM stdin", False),
        ("", False),
    ],
)
def test_a_copy_through_the_connection_is_told(statement: str, expected: bool) -> None:
    assert speaks_to_client(statement) is expected


# --- properties ------------------------------------------------------------------------------------------

SIGNIFICANT = "ab eE'\"$;-/*\\\n\r1_.(é%:"
texts = st.text(alphabet=SIGNIFICANT, max_size=60) | st.text(max_size=60)


@given(texts)
@example("$$;$a$$;$$")
@example("e'\\")
def test_no_character_is_lost(text: str) -> None:
    pieces = fragments(text)
    assert ";".join(pieces) == text
    kept = list(statements(text))
    stripped = [piece.strip(SPACE) for piece in pieces]
    assert kept == [piece for piece in stripped if piece in kept]
    for piece in stripped:
        if piece not in kept:
            assert piece == "" or piece.startswith(("--", "/*"))


@given(texts)
@example("$$x$$a$$;$$")
@example("-/*;*/-- ;\n;")
@example("1 -*;")
def test_the_fast_scanner_finds_the_same_semicolons_as_the_full_one(text: str) -> None:
    fast = [start for kind, start, _ in tokens(text, _CUTS) if kind == "end"]
    full = [start for kind, start, _ in tokens(text, PLAIN) if kind == "end"]
    assert fast == full


def quoted(quote: str) -> st.SearchStrategy[str]:
    body = st.text(alphabet="a;'\"$-/*\\\n", max_size=8)
    return body.map(lambda inside: quote + inside.replace(quote, quote * 2) + quote)


dollar_quoted = st.tuples(st.sampled_from(["$$", "$a$", "$é_1$"]), st.text(alphabet="a;'\"-/*\\\n", max_size=8)).map(
    lambda pair: pair[0] + pair[1] + pair[0]
)
# With an operator behind it: a string on a later line would be more of this one, and have its backslashes.
escaped = st.text(alphabet="a;'\"$-/*\\\n", max_size=8).map(
    lambda inside: "E'" + inside.replace("\\", "\\\\").replace("'", "\\'") + "' ||"
)
comments = st.text(alphabet="a;'\"$", max_size=8).map(lambda inside: f"/* {inside} /* {inside} */ ; */") | st.text(
    alphabet="a;'\"$-/*\\", max_size=8
).map(lambda inside: f"-- {inside}\n")
pieces = st.one_of(
    st.sampled_from(["SELECT", "e", "a$b$c", "1", "+", "-", "/", "$1", "::", "%", ":x", "(", ")", "é"]),
    quoted("'"),
    quoted('"'),
    dollar_quoted,
    escaped,
    comments,
)
# A word first, so that it is a statement; space between, so that two pieces do not become one.
whole_statements = st.lists(pieces, max_size=6).map(lambda parts: " ".join(["SELECT", *parts, "x"]))


@given(st.lists(whole_statements, max_size=4), st.booleans())
def test_joined_statements_come_apart_again(made: list[str], ends: bool) -> None:
    text = " ;\n".join(made) + (";" if ends else "")
    assert list(statements(text)) == made


@given(texts)
def test_every_token_lies_behind_the_one_before(text: str) -> None:
    place = 0
    for _, start, end in tokens(text):
        assert place <= start < end <= len(text)
        place = end


HOSTILE = {
    "quotes": "'" * 300_001,
    "names": '"' * 300_001,
    "dollars": "$a" * 150_000,
    "dollar quotes": "$a$" * 100_001,
    "many tags": "".join(f"$a{number}$" for number in range(50_000)),
    "comments": "/*" * 150_000,
    "comment ends": "*/" * 150_000,
    "escapes": "e'\\" * 100_000,
    "continued": "e'a'\n" * 60_000,
    "almost continued": "e'a'" + "\n--" * 100_000,
    "semicolons": ";" * 100_000,
    "brackets": "rule " + "(" * 300_000,
    "a word": "a" * 300_000,
    "dashes": "- " * 150_000,
    "minus": "-" * 300_001,
    "slashes": "/" * 300_000,
    "bodies": "create function atomic " + "begin " * 50_000,
    "digits": "$" + "1" * 300_000,
    "copies": "copy " * 60_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_time_in_proportion_to_its_length(name: str) -> None:
    text = HOSTILE[name]
    started = time.process_time()
    statements(text)
    fragments(text)
    speaks_to_client(text)
    assert time.process_time() - started < 5.0
