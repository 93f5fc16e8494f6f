"""SQL lives in `sql/*.sql`.  A file holds named queries (`-- name:`) or the parts of one statement (`-- part:`); both
write bound parameters as `:name`, which becomes `$n` here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """Text with `$n` and the order in which named values are bound."""

    text: str
    parameters: tuple[str, ...]

    def bind(self, values: dict[str, object]) -> list[object]:
        return [values[name] for name in self.parameters]


@cache
def _sections(file: str, marker: str) -> dict[str, str]:
    text = files("noetl.adapters.postgres").joinpath("sql", file).read_text("utf-8")
    pieces = re.split(rf"^-- {marker}: *(\w+) *$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def _statement(text: str) -> Statement:
    parameters: list[str] = []
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in parameters:
            parameters.append(name)
        return f"${parameters.index(name) + 1}"

    return Statement(_PARAMETER.sub(number, code), tuple(parameters))


@cache
def query(file: str, name: str) -> Statement:
    return _statement(_sections(file, "name")[name])


@cache
def composed(file: str, parts: tuple[str, ...], *, begin: str = "begin") -> Statement:
    """One statement from its first part, the chosen CTEs and its last part."""
    sections = _sections(file, "part")
    body = ",\n".join((sections[begin], *(sections[part] for part in parts)))
    return _statement(f"{body}\n{sections['end']}")
