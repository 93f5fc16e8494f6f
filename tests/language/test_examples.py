"""What the examples give.  `tests/e2e/test_shapes.py` runs them as a user does; here their results are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from noetl.core.playbook.compile import compile_playbook
from noetl.wiring.tools import tool_kinds
from tests.support.language import EXAMPLES, Case, World, most_events

RESULTS: Mapping[str, Any] = {
    "artifact": {"first": 0, "last": 19999, "loaded": 20000, "tier": "disk", "bytes": 1648918},
    "branching": {"booked": {"amount": 120, "fee": 1.2, "approved_by": "nobody"}, "notified": False},
    "duckdb_join": {
        "best": "somebody",
        "rows": [
            {"name": "somebody", "amount": 159375.0, "orders": 12500},
            {"name": "Barbara", "amount": 156250.0, "orders": 12500},
            {"name": "Grace", "amount": 153125.0, "orders": 12500},
            {"name": "Ada", "amount": 150000.0, "orders": 12500},
        ],
        "created": 50000,
    },
    "error_arc": {"booked": 0, "note": "Nothing was booked: -5 is less than nothing."},
    "fan_in": {"evens": 12, "odds": 16, "total": 28},
    "flaky_api": {"items": 35, "missing": 404},
    "hello_world": {"greeting": "Hello, World!", "letters": 10, "cheer": "HELLO, WORLD! 10 letters!"},
    "keychain": {"sent": "***", "signature": "d7ecdf25", "secret": "***"},
    "large_results": {"highest": 999, "rows": 20000, "megabytes": 2.7},
    "pagination": {"pages": 4, "rows": 35, "best": 100},
    "parallel_loop": {
        "stats": {"total": 40, "success": 39, "failed": 1},
        "largest": 1521,
        "failed": ["invalid literal for int() with base 10: 'seventeen'"],
    },
    "retry_policy": {"attempts": 3},
    "shared_limit": {"shipped": 24, "at most three at a time": True},
    "spark_join": {
        "best": {"name": "Hedy", "amount": 159375.0, "orders": 12500},
        "customers": 4,
        "met": [True, True, True],
    },
    "spark_quality": {
        "report": {"good": 4704, "broken": 96, "highest": 99},
        "rules": ["a pulse", "not_null(patient, hour)", "unique(patient)"],
    },
    "sub_playbook": {
        "greetings": ["Hello, Ada!", "Hello, Grace!", "Hello, Barbara!"],
        "cheer": "HELLO, ALEXANDRIA! 15 letters!",
        "status": "completed",
    },
    "work_queue": {"table": {"rows": 22, "added": 2, "open": 0}, "processed": 22, "failed": 0},
    "workbook": {"palindromes": ["noon!", "level!", "anna?"]},
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_gives_what_it_promises(world: World, path: Any) -> None:
    example = Case(path.stem, path.read_text())
    assert world.completed(example) == RESULTS[path.stem]
    events = world.play(example).events
    assert len(events) <= most_events((event.event_type, event.meta) for event in events)


def test_an_example_can_be_given_other_values(world: World) -> None:
    (text,) = (path.read_text() for path in EXAMPLES if path.stem == "branching")
    result = world.completed(Case("branching", text, {"amount": 20_000, "quiet": False}))
    assert result == {"booked": {"amount": 20_000, "fee": 200.0, "approved_by": "two people"}, "notified": True}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it_and_is_found_under_its_name(path: Any) -> None:
    text = path.read_text()
    head = text.partition("apiVersion")[0]
    assert f"# noetl run examples/{path.name}" in head
    assert f"path: examples/{path.stem}" in text
    assert compile_playbook(text, file=path.name, kinds=tool_kinds()).warnings == ()
