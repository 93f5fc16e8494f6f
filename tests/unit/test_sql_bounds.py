"""Which statements of the postgres tool are read in pieces."""

from __future__ import annotations

import pytest

from noetl.tools.postgres.tables.bounds import is_read_in_pieces

IN_PIECES = [
    "SELECT 1",
    "select * from t limit 1000",
    "select * from t limit 10 offset 5",
    "select count(*) over () from t",
    "select max(a), b from t group by b",
    "select count(*) from t union all select n from u",
    "(select a from t)",
    "( (select a from t) union select 2)",
    "/* limit 1 */ select a from t -- limit 1",
    "select 'limit 1' from t",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "with a as (delete from t returning x) select x from a",
    "values (1), (2)",
    "table t",
    "insert into t select 1 returning id",
    "insert into t (a) table u returning id",
    "insert into t with a as (select 1) select * from a returning id",
    "update t set x = 1 returning x",
    "delete from t using u where t.id = u.id returning *",
    "merge into t using u on t.id = u.id when matched then delete returning t.id",
    "select " + ", ".join(f"'{number}'" for number in range(5000)),
]
AT_ONCE = [
    "",
    "-- nothing",
    "SELECT count(*) FROM t WHERE x > 1",
    "select sum(x), max(y) from (select a from b group by a) as q",
    "select * from t limit 10",
    "select * from (select * from t) as q order by id limit 64",
    "insert into t values (1), (2) returning id",
    "insert into t default values returning id",
    "insert into t select 1",
    "update t set returned = 1",
    "call p(1)",
    "explain select * from t",
    "show all",
    "vacuum t",
    "create table t as select 1",
    "fetch all from c",
    "insert into t values " + ", ".join(f"({number})" for number in range(5000)) + " returning id",
]


@pytest.mark.parametrize("text", IN_PIECES, ids=lambda text: text[:40])
def test_what_may_return_many_rows(text: str) -> None:
    assert is_read_in_pieces(text)


@pytest.mark.parametrize("text", AT_ONCE, ids=lambda text: text[:40])
def test_what_returns_few_rows_or_must_not_be_in_a_transaction(text: str) -> None:
    assert not is_read_in_pieces(text)
