"""The fields of a task of kind `spark` in a document: findings for what is wrong, and the right names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from noetl.core.limits import SPARK_INPUTS_MAX, SPARK_RULES_MAX
from noetl.core.playbook.document import Spot
from noetl.core.playbook.scripts import is_literal, is_sql_script
from noetl.core.playbook.spark.rules import check_of, read_rule
from noetl.core.playbook.spark.secrecy import check_secrets
from noetl.core.playbook.spark.shapes import (
    APPLICATION,
    CODE,
    SQL,
    FieldInvalid,
    check_inputs,
    check_sources,
    is_open,
    read_arguments,
    read_conf,
    read_files,
    read_outputs,
    read_partition_by,
)

TEXT_FIELDS = ("sql", "code", "script", "application")
FIELDS = frozenset(
    (*TEXT_FIELDS, "inputs", "outputs", "expect", "conf", "arguments", "partition_by", "files", "credential")
)
# What other tools call their SQL.
_OTHER_SQL = ("query", "command", "commands", "queries", "cmd", "cmds", "statement", "statements")
# Text in a program that somebody may take for a template; doubled braces of a format string have no spaces in them.
_LOOKS_RENDERED = re.compile(r"\{\{ +[A-Za-z_][\w.]* +\}\}")


def check_spark(fields: dict[str, object], spot: Spot, common: frozenset[str]) -> None:
    """`inputs` is another word for `input`, so that what is a table stays one."""
    _merge_inputs(fields, spot)
    given = [name for name in TEXT_FIELDS if fields.get(name) is not None]
    for key in fields:
        if key not in FIELDS and key not in common:
            hint = ": write sql" if key in _OTHER_SQL else spot.near(key, FIELDS)
            spot.warn("unknown_key", f"unknown key {key!r} is ignored{hint}", key)
    if not given:
        spot.error("spark_text", f"a task of kind spark needs one of {', '.join(TEXT_FIELDS)}")
    elif len(given) > 1:
        spot.error("spark_text", f"{' and '.join(given)} are both given: use one", given[1])
    mode = _mode(given[0], fields) if len(given) == 1 else None
    _check_texts(fields, spot)
    check_secrets(fields, spot)
    if fields.get("arguments") is not None and mode not in (None, APPLICATION):
        spot.error("spark_arguments", "arguments are for an application; give values in inputs", "arguments")
    _check_shapes(fields, spot, mode)


def _merge_inputs(fields: dict[str, object], spot: Spot) -> None:
    given = fields.get("input")
    inputs = fields.pop("inputs", None)
    if not isinstance(inputs, dict | None):
        spot.error("spark_inputs", "inputs must be a mapping: the name of an input to what it is", "inputs")
        return
    place = "input" if inputs is None else "inputs"
    if isinstance(given, dict | None) and inputs is not None:
        fields["input"] = {**(given or {}), **inputs}
    merged = fields.get("input")
    if not isinstance(merged, dict):
        return
    if len(merged) > SPARK_INPUTS_MAX:
        spot.error("spark_inputs", f"{len(merged):,} inputs, the limit is {SPARK_INPUTS_MAX}", place)
    try:
        check_inputs(merged)
        check_sources(merged)
    except FieldInvalid as error:
        spot.error("spark_inputs", str(error), place if inputs is None or error.keys[0] in inputs else "input")


def _mode(name: str, fields: Mapping[str, object]) -> str | None:
    """None when only the run tells."""
    if name != "script":
        return name
    script = fields[name]
    uri = script.get("uri") if isinstance(script, dict) else script
    if not is_literal(uri):
        return None
    return SQL if is_sql_script(str(uri)) else CODE


def _check_texts(fields: Mapping[str, object], spot: Spot) -> None:
    sql = fields.get(SQL)
    texts = sql if isinstance(sql, list) else [sql]
    if sql is not None and not (texts and all(isinstance(one, str) and one.strip() for one in texts)):
        spot.error("spark_text", "sql must be a text with statements, or a list of them", SQL)
    for name in (CODE, APPLICATION):
        text = fields.get(name)
        if text is not None and (not isinstance(text, str) or not text.strip()):
            what = "a program with `def main(spark, …)`" if name == CODE else "the path of a PySpark program"
            spot.error("spark_text", f"{name} must be a text: {what}", name)
    code = fields.get(CODE)
    if isinstance(code, str) and (found := _LOOKS_RENDERED.search(code)) is not None:
        message = f"{found.group()} in code is left as it stands: a program is no template, give values in inputs"
        spot.warn("code_not_rendered", message, CODE)


def _check_shapes(fields: Mapping[str, object], spot: Spot, mode: str | None) -> None:
    readers: Mapping[str, Callable[..., object]] = {
        "conf": read_conf,
        "partition_by": read_partition_by,
        "files": read_files,
        "arguments": read_arguments,
    }
    for name, read in readers.items():
        try:
            read(fields.get(name), is_rendered=False)
        except FieldInvalid as error:
            spot.error(f"spark_{name}", f"{name} {error}", name, *error.keys)
    names: list[str] | None = None
    try:
        names = [output["name"] for output in read_outputs(fields.get("outputs"), mode=mode, is_rendered=False)]
    except FieldInvalid as error:
        spot.error("spark_outputs", f"outputs: {error}", "outputs", *error.keys)
    if is_open(fields.get("outputs"), is_rendered=False):
        names = None
    _check_rules(fields.get("expect"), spot, names)


def _check_rules(value: object, spot: Spot, outputs: list[str] | None) -> None:
    """Every rule for itself: one finding each.  `outputs` is None when nobody knows them yet."""
    if value is None or is_open(value, is_rendered=False):
        return
    if not isinstance(value, list):
        spot.error("spark_expect", "expect must be a list of rules, such as `- not_null: [id]`", "expect")
        return
    if len(value) > SPARK_RULES_MAX:
        spot.error("spark_expect", f"expect has {len(value):,} rules, the limit is {SPARK_RULES_MAX}", "expect")
        return
    for number, error in _wrong_rules(value, outputs):
        spot.error("spark_expect", f"expect, rule {number + 1}: {error}", "expect", number, *error.keys)


def _wrong_rules(value: list[object], outputs: list[str] | None) -> Iterator[tuple[int, FieldInvalid]]:
    for number, entry in enumerate(value):
        if is_open(entry, is_rendered=False):
            continue
        try:
            rule = read_rule(entry, is_rendered=False)
            of = entry.get("of") if isinstance(entry, Mapping) else None
            if outputs is not None and not is_open(of, is_rendered=False):
                check_of(rule, outputs)
        except FieldInvalid as error:
            yield number, error
