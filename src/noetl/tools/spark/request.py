"""The rendered fields of a call as what a job is made of.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from noetl.core.limits import SPARK_RULES_MAX
from noetl.core.playbook.scripts import is_sql_script
from noetl.core.playbook.spark.fields import TEXT_FIELDS
from noetl.core.playbook.spark.rules import RuleFields, check_of, named_apart, read_rule
from noetl.core.playbook.spark.shapes import (
    FieldInvalid,
    read_arguments,
    read_conf,
    read_files,
    read_outputs,
    read_partition_by,
)
from noetl.ports.data.compute import Expectation, JobOutput, Mode
from noetl.ports.tool import Script
from noetl.tools.spark.failures import failed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    mode: Mode
    text: str
    arguments: tuple[str, ...] = ()
    outputs: tuple[JobOutput, ...] = ()
    """Never empty: a task that names none has the one called ""."""
    expectations: tuple[Expectation, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)


def read_request(fields: Mapping[str, object], script: Script | None = None) -> Request:
    """What to run and what shall come of it.  Raises ToolFailed."""
    mode, text = _program(fields, script)
    outputs = _outputs(fields, mode)
    names = [output.name for output in outputs if output.name]
    return Request(
        mode=mode,
        text=text,
        arguments=_read("arguments", lambda: read_arguments(fields.get("arguments"), is_rendered=True)),
        outputs=outputs,
        expectations=tuple(Expectation(**rule) for rule in _rules(fields.get("expect"), names)),
        conf=_read("conf", lambda: read_conf(fields.get("conf"), is_rendered=True)),
    )


def _program(fields: Mapping[str, object], script: Script | None) -> tuple[Mode, str]:
    if script is not None:
        return ("sql" if is_sql_script(script.name) else "code"), _filled("script", script.text)
    given = [name for name in TEXT_FIELDS if fields.get(name) is not None]
    if len(given) != 1:
        names = ", ".join(TEXT_FIELDS)
        what = f"{' and '.join(given)} are both given" if given else "there is nothing to run"
        raise failed("config", f"{what}: a task has one of {names}, and it may not be null")
    name = given[0]
    if name == "sql":
        value = fields[name]
        statements = value if isinstance(value, list | tuple) else [value]
        return "sql", ";\n".join(_filled(name, statement) for statement in statements)
    return ("code" if name == "code" else "application"), _filled(name, fields[name])


def _filled(name: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise failed("config", f"{name} must be a text that is not empty")
    if "\0" in text:
        raise failed("config", f"{name} has a NUL character")
    return text


def _outputs(fields: Mapping[str, object], mode: Mode) -> tuple[JobOutput, ...]:
    """Of an output that says nothing about its files the task does."""
    partition_by = _read("partition_by", lambda: read_partition_by(fields.get("partition_by"), is_rendered=True))
    files = _read("files", lambda: read_files(fields.get("files"), is_rendered=True))
    named = _read("outputs:", lambda: read_outputs(fields.get("outputs"), mode=mode, is_rendered=True))
    found = [JobOutput(**output) for output in named] or [JobOutput(name="")]
    return tuple(
        replace(
            output,
            partition_by=output.partition_by or partition_by,
            files=files if output.files is None else output.files,
        )
        for output in found
    )


def _rules(value: object, outputs: list[str]) -> list[RuleFields]:
    if value is None:
        return []
    if not isinstance(value, list | tuple) or len(value) > SPARK_RULES_MAX:
        raise failed("config", f"expect must be a list of at most {SPARK_RULES_MAX} rules")
    found = []
    for number, entry in enumerate(value):
        try:
            rule = read_rule(entry, is_rendered=True)
            check_of(rule, outputs)
        except FieldInvalid as error:
            raise failed("config", f"expect, rule {number + 1}: {error}") from error
        found.append(rule)
    return named_apart(found)


def _read(name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except FieldInvalid as error:
        raise failed("config", f"{name} {error}") from error
