"""Rules about .sql files."""

from __future__ import annotations

import re

from .source import Finding

COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

# What a statement must never say, and why.
FORBIDDEN: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "append-only ledger",
        re.compile(r"\b(?:UPDATE|DELETE\s+FROM|TRUNCATE(?:\s+TABLE)?)\s+(?:ONLY\s+)?noetl\.event\b", re.I),
        "the ledger is append-only",
    ),
    (
        "no triggers",
        re.compile(r"\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:CONSTRAINT\s+)?TRIGGER\b", re.I),
        "no trigger writes or guards anything",
    ),
    (
        "named conflict",
        re.compile(r"\bON\s+CONFLICT\s+DO\b", re.I),
        "ON CONFLICT names its target, or it hides a clash of ids",
    ),
    (
        "explicit columns",
        re.compile(r"\bSELECT\s+\*\s+FROM\s+noetl\.", re.I),
        "name the columns",
    ),
    (
        "default partition",
        re.compile(r"\bPARTITION\s+OF\s+noetl\.event\s+DEFAULT\b", re.I),
        "a default partition blocks later ones",
    ),
)


def statements(text: str, path: str) -> list[Finding]:
    bare = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return [
        Finding(rule=rule, key=path, line=bare.count("\n", 0, match.start()) + 1, message=message)
        for rule, pattern, message in FORBIDDEN
        for match in pattern.finditer(bare)
    ]
