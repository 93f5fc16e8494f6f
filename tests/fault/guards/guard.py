"""What is known about a guard: where it stands, what stands there without it, and who must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """`file` is below the package `noetl`.  `text` occurs in it once; without the guard `instead` stands there.

    Each of `tests` (a file and a function) must fail then.  `has_database` says that they need Postgres; `is_quick`
    that the guard is taken away in every run of the tests and not only in the long one."""

    name: str
    keeps: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]
    has_database: bool = False
    is_quick: bool = False
