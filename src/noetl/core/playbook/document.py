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
    DOCUMENT_ERRORS_MAX,
    DOCUMENT_NODES_MAX,
    DOCUMENT_TEMPLATES_MAX,
    DOCUMENT_WARNINGS_MAX,
    ERROR_MESSAGE_CHARS_MAX,
)

Path = tuple[str | int, ...]
Event = Any  # one of PyYAML's, which have no types of their members
_STARTS = frozenset((yaml.SequenceStartEvent, yaml.MappingStartEvent))
_ENDS = frozenset((yaml.SequenceEndEvent, yaml.MappingEndEvent))
_NODES = _STARTS | {yaml.ScalarEvent, yaml.AliasEvent}
Mark = Any  # the C parser's and the Python parser's marks have no common type, only `line` and `column`
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_FIELD_CHARS_MAX = 200
_SUGGESTIONS_MAX = 20
_SUGGESTION_WORDS_MAX = 200
_SUGGESTION_CHARS_MAX = 2
_SUGGESTED_CHARS_MAX = 60


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a document and, by path, the line and column (from 1) where each part starts."""

    value: object
    file: str
    marks: Mapping[Path, tuple[int, int]]
    duplicate_keys: tuple[Path, ...] = ()

    def position(self, place: Path) -> tuple[int, int]:
        """The line and column of a part, or of the nearest part around it."""
        while place not in self.marks and place:
            place = place[:-1]
        return self.marks.get(place, (1, 1))


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
    loader = None
    try:
        loader = _LOADER(text)
        builder = _Builder(loader)
        value = builder.build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        raise PlaybookInvalid([_problem("yaml_invalid", message, file, mark)]) from error
    except _Refused as error:
        raise PlaybookInvalid([_problem(error.code, str(error), file, error.mark)]) from error
    except UnicodeEncodeError as error:
        message = f"not valid YAML: the character U+{ord(text[error.start]):04X} is no text"
        raise PlaybookInvalid([Problem("yaml_invalid", message, file, *_line_of(text[: error.start]))]) from error
    except (yaml.YAMLError, ValueError) as error:
        reason, place = str(error).partition("\n")[0], _place(content, getattr(error, "position", None))
        raise PlaybookInvalid([Problem("yaml_invalid", f"not valid YAML: {reason}", file, *place)]) from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(value, file, builder.marks, tuple(builder.duplicate_keys))


def _problem(code: str, message: str, file: str, mark: Mark) -> Problem:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
    return Problem(code, message, file, line, column)


def _place(content: bytes, position: object) -> tuple[int | None, int | None]:
    """Line and column (from 1) of a byte, for an error that knows nothing better."""
    if not isinstance(position, int):
        return None, None
    return _line_of(content[:position].decode("utf-8", "replace"))


def _line_of(before: str) -> tuple[int, int]:
    """The line and column behind a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _too_deep(mark: Mark) -> _Refused:
    message = f"the document is nested deeper than {DOCUMENT_DEPTH_MAX} levels"
    return _Refused("document_too_complex", message, mark)


def _too_many(mark: Mark) -> _Refused:
    message = f"the document has more than {DOCUMENT_NODES_MAX:,} values"
    return _Refused("document_too_complex", message, mark)


class _Builder:
    """Makes values of the events of a parser.  Nesting and number are bounded while the events are read, before a value
    is made of them; an alias is built anew from the events of what it names, and counts like that."""

    def __init__(self, loader: Any) -> None:
        self.marks: dict[Path, tuple[int, int]] = {}
        self.duplicate_keys: list[Path] = []
        self._loader = loader
        self._events: list[Event] = []
        self._anchors: dict[str, int] = {}
        self._at = 0
        self._nodes = self._aliases = self._chars = self._templates = 0

    def build(self) -> object:
        """The value of the only document; None when there is none."""
        self._read()
        if not isinstance(self._events[1], yaml.DocumentStartEvent):
            return None
        self._at = 2
        value = self._value((), 0)
        after = self._events[self._at + 1]
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Refused("yaml_invalid", "not valid YAML: there is more than one document", after.start_mark)
        return value

    def _read(self) -> None:
        depth = count = 0
        events, get_event = self._events, self._loader.get_event
        while (event := get_event()) is not None:
            events.append(event)
            kind = type(event)
            if kind in _ENDS:
                depth -= 1
            elif kind in _NODES:
                count += 1
                if depth > DOCUMENT_DEPTH_MAX:
                    raise _too_deep(event.start_mark)
                if count > 2 * DOCUMENT_NODES_MAX:
                    raise _too_many(event.start_mark)
                if event.anchor is not None:
                    self._name(event)
                depth += kind in _STARTS

    def _name(self, event: Event) -> None:
        """An anchor is given once, and used only behind that."""
        known = event.anchor in self._anchors
        if isinstance(event, yaml.AliasEvent):
            if not known:
                raise _Refused("yaml_invalid", f"not valid YAML: undefined alias {event.anchor!r}", event.start_mark)
        elif known:
            raise _Refused("yaml_invalid", f"not valid YAML: duplicate anchor {event.anchor!r}", event.start_mark)
        else:
            self._anchors[event.anchor] = len(self._events) - 1

    def _value(self, path: Path, depth: int) -> object:
        """The value whose events come next."""
        event = self._events[self._at]
        self._at += 1
        kind = type(event)
        if kind is yaml.AliasEvent:
            return self._again(event, path, depth)
        self._nodes += 1
        if self._nodes > DOCUMENT_NODES_MAX:
            raise _too_many(event.start_mark)
        if depth > DOCUMENT_DEPTH_MAX:
            raise _too_deep(event.start_mark)
        mark = event.start_mark
        self.marks[path] = (mark.line + 1, mark.column + 1)
        if kind is yaml.ScalarEvent:
            return self._scalar(event)
        return self._list(path, depth) if kind is yaml.SequenceStartEvent else self._mapping(path, depth)

    def _again(self, alias: Event, path: Path, depth: int) -> object:
        start, here = self._anchors[alias.anchor], self._at
        if type(self._events[start]) is not yaml.ScalarEvent:
            self._aliases += 1
            if self._aliases > DOCUMENT_ALIASES_MAX:
                message = f"the document uses more than {DOCUMENT_ALIASES_MAX} aliases"
                raise _Refused("document_too_complex", message, alias.start_mark)
        self._at = start
        value = self._value(path, depth)
        self._at = here
        return value

    def _list(self, path: Path, depth: int) -> list[object]:
        items: list[object] = []
        while type(self._events[self._at]) is not yaml.SequenceEndEvent:
            items.append(self._value((*path, len(items)), depth + 1))
        self._at += 1
        return items

    def _mapping(self, path: Path, depth: int) -> dict[str, object]:
        own: dict[str, object] = {}
        inherited: dict[str, object] = {}
        while type(event := self._events[self._at]) is not yaml.MappingEndEvent:
            self._at += 1
            key: Event = self._events[self._anchors[str(event.anchor)]] if type(event) is yaml.AliasEvent else event
            if type(key) is not yaml.ScalarEvent:
                raise _Refused("document_too_complex", "a mapping key must be a plain value", event.start_mark)
            if key.value == "<<" and self._tag(key) == _MERGE_TAG:
                mark = self._events[self._at].start_mark
                _inherit(inherited, self._value((*path, "<<"), depth + 1), mark)
                continue
            made = self._scalar(key)
            name = made if isinstance(made, str) else str(key.value)
            if name in own:
                self.duplicate_keys.append((*path, name))
            own[name] = self._value((*path, name), depth + 1)
        self._at += 1
        return {**inherited, **own} if inherited else own

    def _tag(self, event: Event) -> str:
        if event.tag is not None and event.tag != "!":
            return str(event.tag)
        return str(self._loader.resolve(yaml.ScalarNode, event.value, event.implicit))

    def _scalar(self, event: Event) -> object:
        """YAML knows dates and bytes; a playbook knows text."""
        text: str = event.value
        self._count(text, event.start_mark)
        # What is quoted is text, and so is what begins like nothing else.
        if event.tag is None and (not event.implicit[0] or text[:1] not in self._loader.yaml_implicit_resolvers):
            return text
        tag = self._tag(event)
        if tag == _TEXT_TAG:
            return text
        try:
            value: object = self._loader.construct_object(
                yaml.ScalarNode(tag, text, event.start_mark, event.end_mark, event.style)
            )
        except ValueError as error:
            message = f"not valid YAML: {text[:40]!r} is no value: {error}"
            raise _Refused("yaml_invalid", message, event.start_mark) from error
        if isinstance(value, datetime.date | datetime.datetime):
            return value.isoformat()
        if isinstance(value, bytes):
            return value.decode("latin-1")
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    def _count(self, text: str, mark: Mark) -> None:
        # One long text with many aliases costs nothing here and everything when the value is written out.
        self._chars += len(text)
        if self._chars > DOCUMENT_BYTES_MAX:
            message = f"with its aliases written out the document is larger than {DOCUMENT_BYTES_MAX:,} bytes"
            raise _Refused("document_too_complex", message, mark)
        if "{{" in text or "{%" in text:
            self._templates += 1
            if self._templates > DOCUMENT_TEMPLATES_MAX:
                message = f"the document has more than {DOCUMENT_TEMPLATES_MAX:,} templates"
                raise _Refused("document_too_complex", message, mark)


def _inherit(inherited: dict[str, object], merged: object, mark: Mark) -> None:
    """`<<: *base` or `<<: [*first, *second]`: the first that has a key gives it, own keys stand above all."""
    for source in merged if isinstance(merged, list) else [merged]:
        if not isinstance(source, dict):
            raise _Refused("yaml_invalid", "not valid YAML: << needs a mapping", mark)
        for name, value in source.items():
            inherited.setdefault(name, value)


@dataclass(slots=True)
class Findings:
    """Collects errors and warnings about one document, with their places."""

    document: Document
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def _problem(self, code: str, message: str, path: Path, step: str | None) -> Problem:
        line, column = self.document.position(path)
        name = str(path[-1])[:_FIELD_CHARS_MAX] if path else None
        if len(message) > ERROR_MESSAGE_CHARS_MAX:
            # What a document says is quoted, and a document may say anything.
            message = message[: ERROR_MESSAGE_CHARS_MAX - 1] + "…"
        return Problem(code, message, self.document.file, line, column, step, name)

    def error(self, code: str, message: str, path: Path, *, step: str | None = None) -> None:
        if len(self.errors) < DOCUMENT_ERRORS_MAX:
            self.errors.append(self._problem(code, message, path, step))
        elif len(self.errors) == DOCUMENT_ERRORS_MAX:
            message = f"there are more errors than the {DOCUMENT_ERRORS_MAX} above: correct these first"
            self.errors.append(Problem("too_many_errors", message, self.document.file))

    def warn(self, code: str, message: str, path: Path, *, step: str | None = None) -> None:
        if len(self.warnings) < DOCUMENT_WARNINGS_MAX:
            self.warnings.append(self._problem(code, message, path, step))
        elif len(self.warnings) == DOCUMENT_WARNINGS_MAX:
            message = f"there are more warnings than the {DOCUMENT_WARNINGS_MAX} above: the others are not told"
            self.warnings.append(Problem("too_many_warnings", message, self.document.file))

    def suggestion(self, word: str, known: Iterable[str]) -> str:
        """` (did you mean 'x'?)` when a known word is near; only the first findings are worth the search."""
        if len(self.errors) + len(self.warnings) >= _SUGGESTIONS_MAX:
            return ""
        # Comparing is slow, so only words of about that length are compared, and not too many of them.
        alike = sorted({one for one in known if abs(len(one) - len(word)) <= _SUGGESTION_CHARS_MAX and one != word})
        near = get_close_matches(word, alike[:_SUGGESTION_WORDS_MAX], n=1) if len(word) <= _SUGGESTED_CHARS_MAX else []
        return f" (did you mean {near[0]!r}?)" if near else ""


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
