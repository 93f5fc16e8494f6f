"""`expect`: rules about the rows of an output.

    - not_null: [id, day]                                  # compact: the rule is the key
    - rule: not_null                                       # long: its parts are keys of their own
      columns: [id, day]

Both take `name` (how facts call it), `of` (the output it is about) and `on_break` (`fail` or `quarantine`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import TypedDict

from noetl.core.limits import SPARK_RULE_NAME_CHARS_MAX
from noetl.core.playbook.spark.shapes import FieldInvalid, is_open, read_columns, whole_number

NOT_NULL, UNIQUE, RANGE, ROW_COUNT, REFERENCES, SQL = "not_null", "unique", "range", "row_count", "references", "sql"
# Rule → the keys of its long form.
_KEYS: Mapping[str, tuple[str, ...]] = {
    NOT_NULL: ("column", "columns"),
    UNIQUE: ("column", "columns"),
    RANGE: ("column", "columns", "min", "max"),
    ROW_COUNT: ("min", "max"),
    REFERENCES: ("column", "columns", "to", "to_column", "to_columns"),
    SQL: ("sql",),
}
RULES = tuple(_KEYS)
FAIL, QUARANTINE = "fail", "quarantine"
_SHARED = ("name", "of", "on_break")
_LONG = "rule"
_EXAMPLES = {
    NOT_NULL: "`not_null: [id, day]`",
    UNIQUE: "`unique: id`",
    RANGE: "`range: {column: value, min: 0, max: 300}`",
    ROW_COUNT: "`row_count: {min: 1}`",
    REFERENCES: "`references: {column: patient, to: patients.id}`",
    SQL: '`sql: "value > 0"`',
}


class RuleFields(TypedDict):
    """One rule; the members are those of a job's expectation."""

    name: str
    kind: str
    of: str
    columns: tuple[str, ...]
    low: object
    high: object
    to: str | None
    to_columns: tuple[str, ...]
    sql: str | None
    is_quarantine: bool


def read_rule(entry: object, *, is_rendered: bool) -> RuleFields:
    """Raises FieldInvalid, with the keys that lead to what is wrong."""
    if not isinstance(entry, Mapping):
        raise FieldInvalid(f"a rule is a mapping such as {_EXAMPLES[NOT_NULL]}")
    kind, body = _long(entry) if _LONG in entry else _compact(entry)
    _check_keys(kind, body)
    read = _Reader(kind, body, is_rendered=is_rendered)
    fields = read.fields()
    given = _text(entry, "name", is_rendered=is_rendered)
    fields["of"] = _text(entry, "of", is_rendered=is_rendered)
    fields["is_quarantine"] = _is_quarantine(entry, kind, is_rendered=is_rendered)
    fields["name"] = (given or _derived(fields))[:SPARK_RULE_NAME_CHARS_MAX]
    return fields


def named_apart(rules: Iterable[RuleFields]) -> list[RuleFields]:
    """The rules with different names: facts are told apart by them."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for rule in rules:
        key = (rule["of"], rule["name"])
        seen[key] = seen.get(key, 0) + 1
        number = seen[key]
        found.append(rule if number == 1 else RuleFields(**{**rule, "name": f"{rule['name']} #{number}"}))
    return found


def check_of(rule: RuleFields, outputs: Collection[str]) -> None:
    """A rule is about an output that there is; of several it says which."""
    if not outputs:
        if rule["of"]:
            raise FieldInvalid(f"there is no output {rule['of']!r}: the task names no outputs, leave `of` out", "of")
    elif rule["of"] not in outputs and (rule["of"] or len(outputs) > 1):
        known = ", ".join(outputs)
        what = f"there is no output {rule['of']!r}" if rule["of"] else "there are several outputs: say `of` which it is"
        raise FieldInvalid(f"{what}, of {known}{_near(rule['of'], outputs)}", "of")


def _long(entry: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    kind = entry[_LONG]
    if not isinstance(kind, str) or kind not in _KEYS:
        raise FieldInvalid(f"unknown rule {_shown(kind)}{_near(kind, RULES)}; there are {', '.join(RULES)}", _LONG)
    return kind, {key: value for key, value in entry.items() if key not in (*_SHARED, _LONG)}


def _compact(entry: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    named = [key for key in entry if key not in _SHARED]
    unknown = [key for key in named if key not in _KEYS]
    if unknown:
        known = (*RULES, *_SHARED, _LONG)
        raise FieldInvalid(
            f"unknown rule {unknown[0]!r}{_near(unknown[0], known)}; there are {', '.join(RULES)}", unknown[0]
        )
    if len(named) != 1:
        what = f"{' and '.join(named)} are in one rule" if named else "there is no rule in it"
        raise FieldInvalid(f"{what}: every entry of the list is one, such as {_EXAMPLES[NOT_NULL]}")
    kind = named[0]
    value = entry[kind]
    if isinstance(value, Mapping):
        return kind, dict(value)
    if kind in (NOT_NULL, UNIQUE):
        return kind, {"columns": value}
    if kind == ROW_COUNT:
        return kind, {"min": value, "max": value}
    if kind == SQL:
        return kind, {"sql": value}
    raise FieldInvalid(f"{kind} has parts: write {_EXAMPLES[kind]}", kind)


def _check_keys(kind: str, body: Mapping[str, object]) -> None:
    for key in body:
        if key not in _KEYS[kind]:
            hint = _near(key, (*_KEYS[kind], *_SHARED)) or f": write {_EXAMPLES[kind]}"
            raise FieldInvalid(f"{kind} has an unknown key {key!r}{hint}", kind)


class _Reader:
    """The parts of one rule."""

    def __init__(self, kind: str, body: Mapping[str, object], *, is_rendered: bool) -> None:
        self._kind = kind
        self._body = body
        self._is_rendered = is_rendered

    def fields(self) -> RuleFields:
        columns = self._columns("column", "columns", is_needed="columns" in _KEYS[self._kind])
        to, to_columns = self._target() if self._kind == REFERENCES else (None, ())
        if to_columns and columns and len(to_columns) != len(columns):
            raise self._wrong(f"names {len(columns)} columns and {len(to_columns)} to compare them with")
        low, high = self._bound("min"), self._bound("max")
        if self._kind in (RANGE, ROW_COUNT) and low is None and high is None:
            raise self._wrong("needs min or max")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            raise self._wrong("has a min above its max")
        return RuleFields(
            name="",
            kind=self._kind,
            of="",
            columns=columns,
            low=low,
            high=high,
            to=to,
            to_columns=to_columns,
            sql=self._condition() if self._kind == SQL else None,
            is_quarantine=False,
        )

    def _columns(self, one: str, several: str, *, is_needed: bool) -> tuple[str, ...]:
        given = [self._body[key] for key in (one, several) if self._body.get(key) is not None]
        if len(given) > 1:
            raise self._wrong(f"has {one} and {several}: use one")
        if not given:
            if is_needed:
                raise self._wrong("needs a column")
            return ()
        try:
            columns = read_columns(given[0], is_rendered=self._is_rendered)
        except FieldInvalid as error:
            raise self._wrong(f"{several} {error}") from error
        if not columns and not is_open(given[0], is_rendered=self._is_rendered):
            raise self._wrong("needs a column")
        return columns

    def _target(self) -> tuple[str | None, tuple[str, ...]]:
        """`to: view.column`, or `to` and `to_columns`."""
        to = self._body.get("to")
        if is_open(to, is_rendered=self._is_rendered):
            return None, ()
        if not isinstance(to, str) or not to.strip():
            raise self._wrong("needs `to`: an input, an output or a view, with its column")
        columns = self._columns("to_column", "to_columns", is_needed=False)
        view, dot, column = to.strip().partition(".")
        if dot and columns:
            raise self._wrong("has a column in `to` and to_columns: use one")
        if dot:
            columns = (column,)
        if not view or not all(columns) or not columns:
            raise self._wrong("needs the column that has the values")
        return view, columns

    def _bound(self, key: str) -> object:
        value = self._body.get(key)
        if value is None or is_open(value, is_rendered=self._is_rendered):
            # What is there but not known yet is no reason to miss it.
            return None if value is None else ""
        if isinstance(value, Mapping | list | tuple | bool):
            raise self._wrong(f"{key} must be a number or a text")
        if self._kind != ROW_COUNT:
            return value
        number = whole_number(value)
        if number is None or number < 0:
            raise self._wrong(f"{key} must be a whole number")
        return number

    def _condition(self) -> str:
        value = self._body.get("sql")
        if not isinstance(value, str) or not value.strip():
            raise self._wrong("needs a condition that every row must fulfil")
        return value.strip()

    def _wrong(self, message: str) -> FieldInvalid:
        return FieldInvalid(f"{self._kind} {message}; write {_EXAMPLES[self._kind]}", self._kind)


def _text(entry: Mapping[str, object], key: str, *, is_rendered: bool) -> str:
    value = entry.get(key)
    if value is None or is_open(value, is_rendered=is_rendered):
        return ""
    if not isinstance(value, str):
        raise FieldInvalid(f"{key} must be a text", key)
    return value.strip()


def _is_quarantine(entry: Mapping[str, object], kind: str, *, is_rendered: bool) -> bool:
    value = entry.get("on_break", FAIL)
    if is_open(value, is_rendered=is_rendered):
        return False
    if value not in (FAIL, QUARANTINE):
        raise FieldInvalid(f"on_break must be {FAIL} or {QUARANTINE}{_near(value, (FAIL, QUARANTINE))}", "on_break")
    if value == QUARANTINE and kind == ROW_COUNT:
        raise FieldInvalid(
            "no rows break a row_count, so there are none for quarantine: leave on_break out", "on_break"
        )
    return value == QUARANTINE


def _derived(rule: RuleFields) -> str:
    kind, columns = rule["kind"], ", ".join(rule["columns"])
    if kind == SQL:
        return f"{kind}({' '.join((rule['sql'] or '').split())})"
    if kind == REFERENCES:
        return f"{kind}({columns} to {rule['to']}.{', '.join(rule['to_columns'])})"
    return f"{kind}({columns})" if columns else kind


def _shown(value: object) -> str:
    return repr(value[:40]) if isinstance(value, str) else "that is no text"


def _near(word: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(word)[:40], list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near and near[0] != word else ""
