"""YAML text → plain values with the position of every value.  Bounded: size, depth, aliases, number of
values."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import yaml

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.limits import (
    DOCUMENT_ALIASES_MAX,
    DOCUMENT_BYTES_MAX,
    DOCUMENT_DEPTH_MAX,
    DOCUMENT_NODES_MAX,
)

Path = tuple[str | int, ...]
Mark = Any  # the C parser's and the Python parser's marks have no common type, only `line` and `column`
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_SUGGESTIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a document and, by path, the line and column (from 1) where each part starts."""

    value: object
    file: str
    marks: Mapping[Path, tuple[int, int]]
    duplicate_keys: tuple[Path, ...] = ()


@dataclass(slots=True)
class _Walk:
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    duplicate_keys: list[Path] = field(default_factory=list)
    nodes: int = 0
    aliases: int = 0
    chars: int = 0


class _Refused(Exception):
    def __init__(self, code: str, message: str, mark: Mark) -> None:
        super().__init__(message)
        self.code = code
        self.mark = mark


def read_document(text: str, *, file: str) -> Document:
    """Parse a document or raise PlaybookInvalid with the place and the reason."""
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > DOCUMENT_BYTES_MAX:
        message = (
            f"the document has {len(content):,} bytes, the limit is {DOCUMENT_BYTES_MAX:,}: "
            "move data out of the playbook"
        )
        raise PlaybookInvalid([Problem("document_too_large", message, file)])
    walk = _Walk()
    loader = None
    try:
        _check_size(text)
        loader = _LOADER(text)
        node = loader.get_single_node()
        value = None if node is None else _value_of(node, (), walk, loader, depth=0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        raise PlaybookInvalid([_problem("yaml_invalid", message, file, mark)]) from error
    except _Refused as error:
        raise PlaybookInvalid([_problem(error.code, str(error), file, error.mark)]) from error
    except (yaml.YAMLError, ValueError) as error:
        reason, place = str(error).partition("\n")[0], _place(content, getattr(error, "position", None))
        raise PlaybookInvalid([Problem("yaml_invalid", f"not valid YAML: {reason}", file, *place)]) from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(value, file, walk.marks, tuple(walk.duplicate_keys))


def _problem(code: str, message: str, file: str, mark: Mark) -> Problem:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
    return Problem(code, message, file, line, column)


def _place(content: bytes, position: object) -> tuple[int | None, int | None]:
    """Line and column (from 1) of a byte, for an error that knows nothing better."""
    if not isinstance(position, int):
        return None, None
    before = content[:position].decode("utf-8", "replace")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _check_size(text: str) -> None:
    """Bound nesting and number before the nodes are made: making them recurses on the C stack."""
    loader = _LOADER(text)
    depth = count = 0
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.NodeEvent):
                count += 1
                if depth > DOCUMENT_DEPTH_MAX:
                    raise _too_deep(event.start_mark)
                if count > 2 * DOCUMENT_NODES_MAX:
                    raise _too_many(event.start_mark)
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    finally:
        loader.dispose()


def _too_deep(mark: Mark) -> _Refused:
    message = f"the document is nested deeper than {DOCUMENT_DEPTH_MAX} levels"
    return _Refused("document_too_complex", message, mark)


def _too_many(mark: Mark) -> _Refused:
    message = f"the document has more than {DOCUMENT_NODES_MAX:,} values"
    return _Refused("document_too_complex", message, mark)


def _value_of(node: yaml.Node, path: Path, walk: _Walk, loader: yaml.SafeLoader, *, depth: int) -> object:
    walk.nodes += 1
    if walk.nodes > DOCUMENT_NODES_MAX:
        raise _too_many(node.start_mark)
    if depth > DOCUMENT_DEPTH_MAX:
        raise _too_deep(node.start_mark)
    walk.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, walk, loader)
    _count_alias(node, walk)
    if isinstance(node, yaml.SequenceNode):
        return [_value_of(child, (*path, n), walk, loader, depth=depth + 1) for n, child in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    return _mapping(node, path, walk, loader, depth=depth)


def _count_alias(node: yaml.Node, walk: _Walk) -> None:
    if id(node) in walk.seen:
        walk.aliases += 1
        if walk.aliases > DOCUMENT_ALIASES_MAX:
            message = f"the document uses more than {DOCUMENT_ALIASES_MAX} aliases"
            raise _Refused("document_too_complex", message, node.start_mark)
    walk.seen.add(id(node))


def _mapping(
    node: yaml.MappingNode, path: Path, walk: _Walk, loader: yaml.SafeLoader, *, depth: int
) -> dict[str, object]:
    own: dict[str, object] = {}
    inherited: dict[str, object] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            message = "a mapping key must be a plain value"
            raise _Refused("document_too_complex", message, key_node.start_mark)
        if key_node.tag == _MERGE_TAG:
            merged = _value_of(value_node, (*path, "<<"), walk, loader, depth=depth + 1)
            _inherit(inherited, merged, value_node)
            continue
        key = _scalar(key_node, walk, loader)
        name = key if isinstance(key, str) else str(key_node.value)
        if name in own:
            walk.duplicate_keys.append((*path, name))
        own[name] = _value_of(value_node, (*path, name), walk, loader, depth=depth + 1)
    return {**inherited, **own}


def _inherit(inherited: dict[str, object], merged: object, node: yaml.Node) -> None:
    """`<<: *base` or `<<: [*first, *second]`: the first that has a key gives it, own keys stand above all."""
    for source in merged if isinstance(merged, list) else [merged]:
        if not isinstance(source, dict):
            raise _Refused("yaml_invalid", "not valid YAML: << needs a mapping", node.start_mark)
        for name, value in source.items():
            inherited.setdefault(name, value)


def _scalar(node: yaml.ScalarNode, walk: _Walk, loader: yaml.SafeLoader) -> object:
    """YAML knows dates and bytes; a playbook knows text."""
    # One long text with many aliases costs nothing here and everything when the value is written out.
    walk.chars += len(node.value)
    if walk.chars > DOCUMENT_BYTES_MAX:
        message = f"with its aliases written out the document is larger than {DOCUMENT_BYTES_MAX:,} bytes"
        raise _Refused("document_too_complex", message, node.start_mark)
    try:
        value: object = loader.construct_object(node)
    except ValueError as error:
        message = f"not valid YAML: {str(node.value)[:40]!r} is no value: {error}"
        raise _Refused("yaml_invalid", message, node.start_mark) from error
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(slots=True)
class Findings:
    """Collects errors and warnings about one document, with their places."""

    document: Document
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def _problem(self, code: str, message: str, path: Path, step: str | None) -> Problem:
        place = path
        while place not in self.document.marks and place:
            place = place[:-1]
        line, column = self.document.marks.get(place, (1, 1))
        name = str(path[-1]) if path else None
        return Problem(code, message, self.document.file, line, column, step, name)

    def error(self, code: str, message: str, path: Path, *, step: str | None = None) -> None:
        self.errors.append(self._problem(code, message, path, step))

    def warn(self, code: str, message: str, path: Path, *, step: str | None = None) -> None:
        self.warnings.append(self._problem(code, message, path, step))

    def suggestion(self, word: str, known: Iterable[str]) -> str:
        """` (did you mean 'x'?)` when a known word is near; only the first findings are worth the search."""
        if len(self.errors) + len(self.warnings) >= _SUGGESTIONS_MAX:
            return ""
        near = get_close_matches(word, sorted(known), n=1)
        return f" (did you mean {near[0]!r}?)" if near else ""

    def warn_unknown(
        self, where: str, entry: Mapping[str, object], known: frozenset[str], path: Path, *, step: str
    ) -> None:
        """A key that nobody reads is a slip of the pen more often than not."""
        for key in entry:
            if key not in known:
                hint = self.suggestion(key, known)
                self.warn("unknown_key", f"{where}: unknown key {key!r} is ignored{hint}", (*path, key), step=step)


@dataclass(frozen=True, slots=True)
class Spot:
    """A part of a document that findings are about: how it is called, and where it stands."""

    findings: Findings
    name: str
    place: Path
    step: str | None = None

    def at(self, *keys: str | int) -> Spot:
        """The same part under the same name, seen from one of its keys."""
        return replace(self, place=(*self.place, *keys))

    def part(self, name: str) -> Spot:
        """The same place, with a word for the part of it that is meant."""
        return replace(self, name=f"{self.name}, {name}")

    def error(self, code: str, message: str, *keys: str | int) -> None:
        self.findings.error(code, f"{self.name}: {message}", (*self.place, *keys), step=self.step)

    def warn(self, code: str, message: str, *keys: str | int) -> None:
        self.findings.warn(code, f"{self.name}: {message}", (*self.place, *keys), step=self.step)

    def warn_unknown(self, entry: Mapping[str, object], known: frozenset[str]) -> None:
        """A key that nobody reads is a slip of the pen more often than not."""
        for key in entry:
            if key not in known:
                self.warn("unknown_key", f"unknown key {key!r} is ignored{self.near(key, known)}", key)

    def near(self, word: str, known: Iterable[str]) -> str:
        return self.findings.suggestion(word, known)
