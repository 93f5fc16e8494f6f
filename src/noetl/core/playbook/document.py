"""YAML text → plain values with the position of every value.  Bounded: size, depth, aliases, number of nodes."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

import yaml

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.limits import (
    DOCUMENT_ALIASES_MAX,
    DOCUMENT_BYTES_MAX,
    DOCUMENT_DEPTH_MAX,
    DOCUMENT_NODES_MAX,
)

Path = tuple[str | int, ...]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


class _TooMuch(Exception):
    def __init__(self, message: str, node: yaml.Node) -> None:
        super().__init__(message)
        self.node = node


def read_document(text: str, *, file: str) -> Document:
    """Parse a document or raise PlaybookInvalid with the place and the reason."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > DOCUMENT_BYTES_MAX:
        message = f"the document has {size:,} bytes, the limit is {DOCUMENT_BYTES_MAX:,}: move data out of the playbook"
        raise PlaybookInvalid([Problem("document_too_large", message, file)])
    loader = _LOADER(text)
    walk = _Walk()
    try:
        node = loader.get_single_node()
        value = None if node is None else _value_of(node, (), walk, loader, depth=0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise PlaybookInvalid(
            [Problem("yaml_invalid", f"not valid YAML: {error.problem or error.context}", file, *place)]
        ) from error
    except _TooMuch as error:
        mark = error.node.start_mark
        raise PlaybookInvalid(
            [Problem("document_too_complex", str(error), file, mark.line + 1, mark.column + 1)]
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PlaybookInvalid([Problem("yaml_invalid", f"not valid YAML: {error}", file)]) from error
    finally:
        loader.dispose()
    return Document(value, file, walk.marks, tuple(walk.duplicate_keys))


def _value_of(node: yaml.Node, path: Path, walk: _Walk, loader: yaml.SafeLoader, *, depth: int) -> object:
    walk.nodes += 1
    if walk.nodes > DOCUMENT_NODES_MAX:
        raise _TooMuch(f"the document has more than {DOCUMENT_NODES_MAX:,} values", node)
    if depth > DOCUMENT_DEPTH_MAX:
        raise _TooMuch(f"the document is nested deeper than {DOCUMENT_DEPTH_MAX} levels", node)
    walk.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(loader.construct_object(node))
    if id(node) in walk.seen:
        walk.aliases += 1
        if walk.aliases > DOCUMENT_ALIASES_MAX:
            raise _TooMuch(f"the document uses more than {DOCUMENT_ALIASES_MAX} aliases", node)
    walk.seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [
            _value_of(child, (*path, n), walk, loader, depth=depth + 1) for n, child in enumerate(node.value)
        ]
    assert isinstance(node, yaml.MappingNode)
    return _mapping(node, path, walk, loader, depth=depth)


def _mapping(
    node: yaml.MappingNode, path: Path, walk: _Walk, loader: yaml.SafeLoader, *, depth: int
) -> dict[str, object]:
    if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
        loader.flatten_mapping(node)
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _TooMuch("a mapping key must be a plain value", key_node)
        key = _scalar(loader.construct_object(key_node))
        name = key if isinstance(key, str) else str(key_node.value)
        if name in result:
            walk.duplicate_keys.append((*path, name))
        result[name] = _value_of(value_node, (*path, name), walk, loader, depth=depth + 1)
    return result


def _scalar(value: object) -> object:
    """YAML knows dates and bytes; a playbook knows text."""
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


def suggestion(word: str, known: list[str]) -> str:
    """` (did you mean 'x'?)` when a known word is near, else nothing."""
    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
