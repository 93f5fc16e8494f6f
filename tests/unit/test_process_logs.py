"""What processes log: every event is on the page, every line has known fields, and nothing else gets in."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import noetl
from noetl.cli.operating.logs import FIELDS, TEXT_CHARS_MAX, JsonLines, TextLines, log_to_stderr
from noetl.cli.pages.logs import EVENTS, logs_markdown
from noetl.core.errors import SettingsInvalid
from noetl.settings import read_settings

SOURCE = Path(noetl.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "logs.md"
LEVELS = {f"log.{name}" for name in ("debug", "info", "warning", "error", "exception", "critical", "log")}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in LEVELS:
            yield node


def told(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Every event that a module may log, with the fields beside it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            names = {key.value: value for key, value in zip(node.keys, node.values, strict=True) if _is_text(key)}
            event = names.pop("event", None)
            if _is_text(event) and "." in event.value:
                yield event.value, set(names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pause":
            yield from ((one.value, {"reason"}) for one in node.args[2:3] if _is_text(one))


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def modules() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if "core" not in path.relative_to(SOURCE).parts:
            yield path, ast.parse(path.read_text("utf-8"))


def test_every_event_that_is_logged_is_on_the_page_and_the_page_has_no_others() -> None:
    found = {event for _, tree in modules() for event, _ in told(tree)}
    assert len(found) > 30
    assert sorted(found) == sorted(EVENTS)
    assert PAGE.read_text("utf-8") == logs_markdown(), "run: python -m noetl.cli.reference"


def test_every_line_has_an_event_and_known_fields() -> None:
    for path, tree in modules():
        for call in calls(tree):
            assert any(word.arg == "extra" for word in call.keywords), f"{path}:{call.lineno} logs without an event"
        for event, fields in told(tree):
            assert fields <= FIELDS.keys(), f"{path}: {event} has a field that no log shows"


def test_the_check_sees_what_it_shall() -> None:
    tree = ast.parse('log.info("x", extra={"event": "a.b", "secret": 1})\nlog.error("y")')
    assert list(told(tree)) == [("a.b", {"secret"})]
    assert [bool(call.keywords) for call in calls(tree)] == [True, False]


def record(message: str = "hello", **extra: object) -> logging.LogRecord:
    return logging.getLogger("noetl.test").makeRecord(
        "noetl.test", logging.WARNING, "here.py", 1, message, (), None, extra=extra
    )


def test_a_line_is_one_object_with_what_is_known() -> None:
    line = json.loads(
        JsonLines().format(record(event="shards.lost", execution_id=2**60, shard_id=3, reason="silent\nlong"))
    )
    moment = line.pop("time")
    assert moment.endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "noetl.test",
        "event": "shards.lost",
        "message": "hello",
        "execution_id": str(2**60),
        "shard_id": 3,
        "reason": "silent\nlong",
    }


def test_nothing_else_gets_into_a_line_and_no_field_is_endless() -> None:
    text = JsonLines().format(record(event="a.b", payload="hidden", token="hidden", reason="x" * 10 * TEXT_CHARS_MAX))
    assert "hidden" not in text
    assert "\n" not in text
    assert len(json.loads(text)["reason"]) == TEXT_CHARS_MAX
    assert json.loads(JsonLines().format(record()))["event"] is None


def test_a_defect_is_told_with_its_trace_in_one_line() -> None:
    try:
        int("broken")
    except ValueError:
        one = record(event="host.failed")
        one.exc_info = sys.exc_info()
    text = JsonLines().format(one)
    assert "\n" not in text
    assert "ValueError: invalid literal" in json.loads(text)["trace"]


def test_text_is_for_people() -> None:
    text = TextLines().format(record(event="shards.lost", reason="silent"))
    assert text.endswith("WARNING noetl.test hello shards.lost silent")
    assert TextLines().format(record()).endswith("noetl.test hello")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    found = logging.getLogger()
    handlers, level = list(found.handlers), found.level
    yield found
    found.handlers[:], found.level = handlers, level


@pytest.mark.parametrize(
    ("chosen", "serves", "is_json"),
    [(None, True, True), (None, False, False), ("json", False, True), ("text", True, False), ("auto", True, True)],
)
def test_the_format_is_chosen(
    chosen: str | None, serves: bool, is_json: bool, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    settings = read_settings({} if chosen is None else {"NOETL_LOG_FORMAT": chosen})
    log_to_stderr(settings, serves=serves)
    assert isinstance(root.handlers[-1].formatter, JsonLines if is_json else TextLines)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(SettingsInvalid, match="NOETL_LOG_FORMAT must be one of auto, json, text, not 'xml'"):
        read_settings({"NOETL_LOG_FORMAT": "xml"})
