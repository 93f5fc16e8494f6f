"""The fields of a task of kind `spark` as plain data, of known shape.

Before a field is rendered a template may stand for anything; such a value passes and reads as nothing."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import TypedDict

from noetl.core.expression import to_text
from noetl.core.limits import SPARK_COLUMNS_MAX, SPARK_CONF_MAX, SPARK_FILES_MAX, SPARK_OUTPUTS_MAX
from noetl.core.playbook.scripts import is_literal

SQL, CODE, APPLICATION = "sql", "code", "application"
RESERVED_OUTPUTS = frozenset(("expect", "quarantine", "status"))
"""What the result of a task says about all of its outputs stands beside them."""
OUTPUT_KEYS = frozenset(("query", "partition_by", "files"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CONF_PREFIX = "spark."
_DIGITS_MAX = 30
_COUNT_MAX = 2**63 - 1
_SOURCES = ("postgres", "http")


class FieldInvalid(ValueError):
    """A field has a shape that nobody can follow.  `keys` lead from the field to what is wrong."""

    def __init__(self, message: str, *keys: str | int) -> None:
        super().__init__(message)
        self.keys = keys


class OutputFields(TypedDict):
    """One of `outputs`; the members are those of a job's output."""

    name: str
    query: str | None
    partition_by: tuple[str, ...]
    files: int | None


def is_open(value: object, *, is_rendered: bool) -> bool:
    """Whether nobody knows yet what a value will be."""
    return not is_rendered and isinstance(value, str) and not is_literal(value)


def is_name(value: object) -> bool:
    """Whether a text can be a view in SQL and a parameter in Python without quotes."""
    return isinstance(value, str) and _NAME.match(value) is not None


def check_inputs(inputs: Mapping[str, object]) -> None:
    """Inputs are views in SQL and parameters of `main`; Spark does not tell names by their case."""
    seen: dict[str, str] = {}
    for name in inputs:
        if not is_name(name):
            raise FieldInvalid(
                f"the input {name!r} needs another name: letters, digits and _, for it is a view and a parameter", name
            )
        if keyword.iskeyword(name):
            raise FieldInvalid(f"the input {name!r} needs another name: it is a word of Python's", name)
        if name == "spark":
            raise FieldInvalid("the input 'spark' needs another name: that is the session", name)
        before = seen.setdefault(name.lower(), name)
        if before != name:
            raise FieldInvalid(f"the inputs {before!r} and {name!r} are one name to Spark: give one another", name)


def check_sources(inputs: Mapping[str, object]) -> None:
    """An input of one of our data sources says what to read, by name."""
    for name, value in inputs.items():
        keys = set(value) if isinstance(value, Mapping) else set()
        for source in _SOURCES:
            if source not in keys or not keys <= {source, "auth"}:
                continue
            body = value[source]  # type: ignore[index]
            if not isinstance(body, Mapping) and not is_open(body, is_rendered=False):
                example = "{table: orders}" if source == "postgres" else "{url: …}"
                raise FieldInvalid(f"the input {name!r}: {source} must be a mapping, such as {example}", name)


def read_columns(value: object, *, is_rendered: bool) -> tuple[str, ...]:
    """The name of a column, or a list of names."""
    if value is None or is_open(value, is_rendered=is_rendered):
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name.strip() for name in names):
        raise FieldInvalid("must be the name of a column, or a list of names")
    if len(names) > SPARK_COLUMNS_MAX:
        raise FieldInvalid(f"has {len(names):,} columns, the limit is {SPARK_COLUMNS_MAX}")
    return tuple(name.strip() for name in names)


def read_partition_by(value: object, *, is_rendered: bool) -> tuple[str, ...]:
    """Columns as `read_columns` does, each one once: Spark does not tell names by their case."""
    names = read_columns(value, is_rendered=is_rendered)
    seen = set[str]()
    for name in names:
        if name.lower() in seen:
            raise FieldInvalid(f"names the column {name!r} twice")
        seen.add(name.lower())
    return names


def whole_number(value: object) -> int | None:
    """A whole number, also as text; None for anything else, and for one that nothing can count up to."""
    if isinstance(value, str):
        digits = value.strip()
        # Python reads no text of any length as a number.
        value = int(digits) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else None
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if isinstance(value, int) and is_whole and abs(value) <= _COUNT_MAX else None


def read_files(value: object, *, is_rendered: bool) -> int | None:
    """How many files an output may have."""
    if value is None or is_open(value, is_rendered=is_rendered):
        return None
    number = whole_number(value)
    if number is None or not 1 <= number <= SPARK_FILES_MAX:
        raise FieldInvalid(f"must be a whole number from 1 to {SPARK_FILES_MAX:,}")
    return number


def read_conf(value: object, *, is_rendered: bool) -> dict[str, str]:
    """Settings of Spark's; their values are text as Spark writes it."""
    if value is None or is_open(value, is_rendered=is_rendered):
        return {}
    if not isinstance(value, Mapping):
        raise FieldInvalid("must be a mapping of Spark's settings, such as `spark.sql.shuffle.partitions: 8`")
    if len(value) > SPARK_CONF_MAX:
        raise FieldInvalid(f"has {len(value):,} settings, the limit is {SPARK_CONF_MAX}")
    found: dict[str, str] = {}
    for name, setting in value.items():
        if not str(name).startswith(_CONF_PREFIX):
            raise FieldInvalid(f"{name!r} is no setting of Spark's: their names begin with {_CONF_PREFIX}", name)
        if setting is None or isinstance(setting, Mapping | list | tuple):
            raise FieldInvalid(f"{name} must be a text, a number or true or false", name)
        found[str(name)] = str(setting).lower() if isinstance(setting, bool) else to_text(setting)
    return found


def read_arguments(value: object, *, is_rendered: bool) -> tuple[str, ...]:
    """What an application finds on its command line."""
    if value is None or is_open(value, is_rendered=is_rendered):
        return ()
    if not isinstance(value, list | tuple) or any(one is None or isinstance(one, Mapping | list) for one in value):
        raise FieldInvalid("must be a list of texts and numbers")
    return tuple(to_text(one) for one in value)


def read_outputs(value: object, *, mode: str | None, is_rendered: bool) -> tuple[OutputFields, ...]:
    """`outputs` in both forms: a list of names, or names with what they are."""
    if value is None or is_open(value, is_rendered=is_rendered):
        return ()
    if isinstance(value, list | tuple):
        value = dict.fromkeys(_listed(value))
    if not isinstance(value, Mapping) or not value:
        raise FieldInvalid("must be a mapping from names to what they are, or a list of names")
    if len(value) > SPARK_OUTPUTS_MAX:
        raise FieldInvalid(f"has {len(value):,} names, the limit is {SPARK_OUTPUTS_MAX}")
    found, seen = [], set[str]()
    for name, entry in value.items():
        if not is_name(name) or name in RESERVED_OUTPUTS:
            words = ", ".join(sorted(RESERVED_OUTPUTS))
            raise FieldInvalid(f"{name!r} cannot be an output: use letters, digits and _, and none of {words}", name)
        if name.lower() in seen:
            raise FieldInvalid(f"the output {name!r} is there twice: Spark does not tell names by their case", name)
        seen.add(name.lower())
        found.append(_output(str(name), entry, mode, is_rendered=is_rendered))
    return tuple(found)


def _listed(names: Sequence[object]) -> list[str]:
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise FieldInvalid("a list of outputs has nothing but names", number)
    return [str(name) for name in names]


def _output(name: str, entry: object, mode: str | None, *, is_rendered: bool) -> OutputFields:
    if is_open(entry, is_rendered=is_rendered):
        return OutputFields(name=name, query=None, partition_by=(), files=None)
    given = {"query": entry} if isinstance(entry, str) else {} if entry is None else entry
    if not isinstance(given, Mapping):
        raise FieldInvalid(
            f"the output {name!r} is a view, a SELECT, or a mapping with query, partition_by, files", name
        )
    for key in given:
        if key not in OUTPUT_KEYS:
            known = ", ".join(sorted(OUTPUT_KEYS))
            raise FieldInvalid(f"the output {name!r} has an unknown key {key!r}: it may have {known}", name, key)
    query = given.get("query")
    if query is not None and (not isinstance(query, str) or not query.strip()):
        raise FieldInvalid(f"the output {name!r} needs a text as query: a view, or a SELECT", name)
    if query is not None and mode not in (None, SQL):
        raise FieldInvalid(f"the output {name!r} has a query: that is for sql, elsewhere the program makes it", name)
    try:
        partition_by = read_partition_by(given.get("partition_by"), is_rendered=is_rendered)
    except FieldInvalid as error:
        raise FieldInvalid(f"the output {name!r}: partition_by {error}", name, "partition_by") from error
    try:
        files = read_files(given.get("files"), is_rendered=is_rendered)
    except FieldInvalid as error:
        raise FieldInvalid(f"the output {name!r}: files {error}", name, "files") from error
    text = query.strip() if isinstance(query, str) else None
    return OutputFields(name=name, query=text, partition_by=partition_by, files=files)
