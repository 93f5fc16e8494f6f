"""What a command carries by reference, as names of templates: results of steps, and entries of the context."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noetl.core.dataset import is_tabular
from noetl.core.errors import PayloadCorrupt
from noetl.core.expression import (
    FailedView,
    Lazy,
    LoopView,
    ResultRows,
    Undefined,
    bare,
    data_of,
    find,
    lookup,
    view_of,
)
from noetl.core.expression.views import MISSING, kept_pipeline, loop_summary
from noetl.core.expression.views.absence import put
from noetl.core.expression.views.base import Absent
from noetl.core.expression.views.pipelines import found, with_parts
from noetl.core.reference import MEDIA_LOOP, MEDIA_PIPELINE, held_media, is_parted
from noetl.core.results.failures import error_of
from noetl.core.results.parts import StoredPart, Table
from noetl.core.results.patched import Patched
from noetl.engine.payloads import Payloads
from noetl.engine.stored.extras import Selected, extras_of
from noetl.engine.stored.sources import Fetchable, StoredPayload, Together
from noetl.engine.stored.tables import StoredRows


class Reader:
    """Opens references for one owner, each payload once."""

    def __init__(self, payloads: Payloads, *, tenant_id: str, organization_id: str) -> None:
        self._payloads = payloads
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self._opened: dict[str, StoredPayload] = {}
        self._parts: dict[str, StoredPart] = {}

    def payload(self, reference: Mapping[str, Any]) -> StoredPayload:
        key = f"{reference['sha256']} {reference['media_type']}"
        if key not in self._opened:
            is_plain = reference["media_type"] not in (MEDIA_PIPELINE, MEDIA_LOOP)
            self._opened[key] = StoredPayload(
                self._payloads, reference, origin=is_plain, open_part=self.part, **self._owner
            )
        return self._opened[key]

    def forget(self) -> None:
        """Drop what was opened.  Views that are in use keep theirs; what is looked at again is opened again."""
        self._opened.clear()

    def part(self, reference: Mapping[str, Any]) -> StoredPart:
        """The view of a payload that another one names, or that a tool stored before it answered."""
        key = str(reference["sha256"])
        if key not in self._parts:
            if is_tabular(reference["media_type"]):
                self._parts[key] = Table(StoredRows(self._payloads, reference, **self._owner), reference)
            else:
                self._parts[key] = StoredValue(self, reference)
        return self._parts[key]

    def step(self, envelope: Mapping[str, Any]) -> object:
        """The view of a step's result from what a command says of it."""
        reference, stored = envelope["ref"], envelope.get("stored")
        self._payloads.used.named(reference, envelope.get("ref_id"))
        extras = extras_of(reference, stored, lambda: self.result(reference))
        selected = Selected(envelope.get("selected") or (), lambda: self.result(reference))
        error = error_of(envelope.get("error")) if envelope["status"] == "error" else None
        failed = (error,) if envelope["status"] == "error" else ()
        opened = StepView(self, reference, extras, selected, failed)
        # What is at hand needs no detour.
        is_simple = not selected and envelope.get("traceback") is None and self._is_at_hand(reference)
        return opened._inner() if is_simple else opened

    def _is_at_hand(self, reference: Mapping[str, Any] | None) -> bool:
        if reference is None or is_tabular(reference["media_type"]):
            return True
        return reference["media_type"] != MEDIA_LOOP and self.payload(reference).is_read

    def text(self, reference: Mapping[str, Any]) -> Text:
        return Text(self._payloads, reference, **self._owner)

    def entry(self, document: Mapping[str, Any]) -> object:
        """A value of the context or the workload: at hand, or somewhere in a payload; perhaps written in part since."""
        patches = document.get("patches")
        value = EntryView(self, document["ref"], document["path"]) if "ref" in document else document.get("v")
        if not patches:
            return value
        return Patched(value, [(tuple(patch["below"]), self.entry(patch)) for patch in patches])

    def result(self, reference: Mapping[str, Any], extras: Mapping[str, object] | None = None) -> object:
        """The view of the result behind a reference.  Raises Absent."""
        self._payloads.used.opened(reference["sha256"])
        if is_tabular(reference["media_type"]):
            return view_of(self.part(reference), extras=extras)
        root = self.payload(reference).root()
        if held_media(reference["media_type"]) == MEDIA_PIPELINE:
            return kept_pipeline(root, extras)
        if reference["media_type"] == MEDIA_LOOP:
            return self._loop(root, extras)
        return view_of(root, extras=extras)

    def _loop(self, document: object, extras: Mapping[str, object] | None) -> object:
        plain: Any = bare(document)
        return self.loop(plain, extras)

    def loop(self, document: Mapping[str, Any], extras: Mapping[str, object] | None = None) -> LoopView:
        """The view of a loop's result as it is kept."""
        return LoopView(loop_summary(document), ResultRows(LoopRecords(self, document)), extras=extras)


class StoredValue(StoredPart):
    """A value that is a payload of its own."""

    __slots__ = ("_reader",)
    _reader: Reader

    def __init__(self, reader: Reader, reference: Mapping[str, Any]) -> None:
        super().__init__(reference)
        put(self, "_reader", reader)

    def _inner(self) -> Any:
        return self._reader.payload(self._reference).root()


class StepView(Lazy):
    """A step's result that is opened when somebody looks at more than the few names that travelled with its event.

    `failed` has the error of a result that failed."""

    __slots__ = ("_extras", "_failed", "_made", "_reader", "_reference", "_selected")
    _reader: Reader
    _reference: Mapping[str, Any] | None
    _extras: Mapping[str, object]
    _selected: Selected
    _failed: tuple[Mapping[str, object] | None, ...]
    _made: list[object]

    def __init__(
        self,
        reader: Reader,
        reference: Mapping[str, Any] | None,
        extras: Mapping[str, object],
        selected: Selected,
        failed: tuple[Mapping[str, object] | None, ...],
    ) -> None:
        put(self, "_reader", reader)
        put(self, "_reference", reference)
        put(self, "_extras", extras)
        put(self, "_selected", selected)
        put(self, "_failed", failed)
        put(self, "_made", [])

    def _inner(self) -> Any:
        if not self._made:
            names = {**self._extras, **self._selected.names}
            view = view_of(None) if self._reference is None else self._reader.result(self._reference, names)
            self._made.append(FailedView(self._failed[0], view) if self._failed else view)
        return self._made[0]

    def _find(self, key: object) -> object:
        if not self._made and not self._failed:
            # An alias that is also a key of the result was not recorded, so this is what the result would say.
            known = self._selected.find((), key)
            for names in (self._selected.names, self._extras):
                if known is MISSING and isinstance(key, str):
                    known = names.get(key, MISSING)
            if known is not MISSING:
                return known
        return find(self._inner(), key)

    def _data(self) -> object:
        return data_of(self._inner())

    def _unaliased(self) -> object:
        return self._inner()._unaliased()


class Text(Lazy):
    """A stored text, such as a traceback."""

    __slots__ = ("_owner", "_payloads", "_read", "_reference")
    _payloads: Payloads
    _reference: Mapping[str, Any]
    _owner: Mapping[str, str]
    _read: list[str]

    def __init__(self, payloads: Payloads, reference: Mapping[str, Any], **owner: str) -> None:
        put(self, "_payloads", payloads)
        put(self, "_reference", reference)
        put(self, "_owner", owner)
        put(self, "_read", [])

    def _inner(self) -> Any:
        if not self._read:
            raise Absent(_TextPart(self))
        return self._read[0]


class _TextPart:
    def __init__(self, text: Text) -> None:
        self._text = text

    async def fetch(self) -> None:
        text = self._text
        text._read.append(await text._payloads.read_text(text._reference, **text._owner))


class EntryView(Lazy):
    """Data at a place in a stored result; it has no aliases."""

    __slots__ = ("_path", "_reader", "_reference")
    _reader: Reader
    _reference: Mapping[str, Any]
    _path: Sequence[str | int]

    def __init__(self, reader: Reader, reference: Mapping[str, Any], path: Sequence[str | int]) -> None:
        put(self, "_reader", reader)
        put(self, "_reference", reference)
        put(self, "_path", path)

    def _inner(self) -> Any:
        value = self._reader.result(self._reference)
        for key in self._path:
            value = lookup(value, key, "path")
            if isinstance(value, Undefined):
                raise PayloadCorrupt(f"{self._reference['uri']} has no {key!r}")
        return data_of(value)


class LoopRecords(Lazy):
    """The records of a loop's rows in item order.  An index opens one frame's output, or the parts that were persisted
    before it was lost; what is nowhere failed with the frame, and rows of frames that never ran are null.  A frame
    without an error has no more rows than its parts say: between them may stand those of others.  Of a pipeline that
    runs once per frame there is one record for each frame that was given out."""

    __slots__ = ("_firsts", "_frames", "_known", "_reader", "_segments", "_total")
    _reader: Reader
    _frames: Sequence[Mapping[str, Any]]
    _segments: Sequence[tuple[int, int, Mapping[str, Any]]]
    _firsts: Sequence[int]
    _total: int
    _known: dict[str, dict[int, object]]

    def __init__(self, reader: Reader, document: Mapping[str, Any]) -> None:
        frames = sorted(document["frames"], key=lambda frame: int(frame["first"]))
        if "count" in document:
            frames = _framewise(frames)
        put(self, "_reader", reader)
        put(self, "_frames", frames)
        segments = sorted((one for frame in frames for one in _segments(frame)), key=lambda one: one[:2])
        put(self, "_segments", segments)
        put(self, "_known", {})
        put(self, "_firsts", [first for first, _, _ in segments])
        put(self, "_total", document.get("count", document["total"]))

    def _sample(self) -> object:
        return []

    def _is_keyed(self) -> bool:
        return False

    def __len__(self) -> int:
        return self._total

    def __bool__(self) -> bool:
        return self._total > 0

    def _find(self, key: object) -> object:
        if not isinstance(key, int) or not -self._total <= key < self._total:
            return MISSING
        index = key % self._total
        number = bisect_right(self._firsts, index) - 1
        first, end, frame = self._segments[number] if number >= 0 else (0, 0, {})
        return self._record(frame, index) if first <= index < end else None

    def _record(self, frame: Mapping[str, Any], index: int) -> object:
        if frame.get("records") is not None:
            return frame["records"][index - frame["first"]]
        if frame["ref"] is not None:
            records = found(self._reader.payload(frame["ref"]).root(), "records")
            return find(records, index - frame["first"])
        for part in frame.get("parts", ()):
            if any(first <= index < end for first, end in part["ranges"]):
                return self._part_record(part, index - part.get("shift", 0))
        return {"e": frame["error"]} if frame.get("error") is not None else None

    def _part_record(self, part: Mapping[str, Any], row: int) -> object:
        root = self._reader.payload(part["ref"]).root()
        records = find(root, "records")
        if records is not MISSING:
            first: Any = bare(found(root, "first"))
            return find(records, row - first)
        digest = part["ref"]["sha256"]
        if digest not in self._known:
            document: Any = with_parts(root)
            self._known[digest] = dict(document["rows"])
        return self._known[digest][row]

    def _cut(self, bounds: slice) -> object:
        indexes = range(self._total)[bounds]
        self._need([frame for frame in self._frames if _overlaps(frame, indexes)])
        return [self._find(index) for index in indexes]

    def _inner(self) -> Any:
        return self._plain()

    def _plain(self) -> object:
        return self._all(bare)

    def _holds_parts(self) -> bool:
        return any(is_parted(one["media_type"]) for frame in self._frames for one in _references(frame))

    def _parted(self) -> object:
        return self._all(with_parts)

    def _all(self, open_: Callable[[object], object]) -> list[object]:
        self._need(self._frames)
        records: list[object] = [None] * self._total
        for frame in self._frames:
            first, end = frame["first"], frame["first"] + frame["rows"]
            if frame.get("records") is not None:
                records[first:end] = list(frame["records"])
            elif frame["ref"] is not None:
                plain: Any = open_(found(self._reader.payload(frame["ref"]).root(), "records"))
                records[first:end] = list(plain)
            else:
                if frame.get("error") is not None:
                    records[first:end] = [{"e": frame["error"]}] * (end - first)
                for part in frame.get("parts", ()):
                    self._put(part, records, open_)
        return records

    def _put(self, part: Mapping[str, Any], records: list[object], open_: Callable[[object], object]) -> None:
        """The rows of a part at their places.  It may be a whole frame's output, of which only some rows count."""
        document: Any = open_(self._reader.payload(part["ref"]).root())
        shift = part.get("shift", 0)
        if "records" in document:
            shift += document["first"]
            for first, end in part["ranges"]:
                records[first:end] = document["records"][first - shift : end - shift]
            return
        rows = dict(document["rows"])
        for first, end in part["ranges"]:
            records[first:end] = [rows[index - shift] for index in range(first, end)]

    def _need(self, frames: Sequence[Mapping[str, Any]]) -> None:
        """Have all payloads of some frames fetched at once, instead of one after the other."""
        missing: list[Fetchable] = []
        for frame in frames:
            for reference in _references(frame) if frame.get("records") is None else ():
                payload = self._reader.payload(reference)
                if not payload.is_read:
                    missing.append(payload)
        if missing:
            raise Absent(Together(missing))


def _segments(frame: Mapping[str, Any]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """The rows that a frame answers for."""
    is_whole = frame.get("records") is not None or frame["ref"] is not None or frame.get("error") is not None
    if is_whole:
        return [(frame["first"], frame["first"] + frame["rows"], frame)]
    return [(first, end, frame) for part in frame.get("parts", ()) for first, end in part["ranges"]]


def _references(frame: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Where the records of a frame are."""
    return [frame["ref"]] if frame["ref"] is not None else [part["ref"] for part in frame.get("parts", ())]


def _framewise(frames: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The frames of a pipeline that ran once for each of them: each has one record, which stands for all its rows."""
    if len(frames) == 1 and frames[0].get("records") is not None:
        return [{**frames[0], "first": 0, "rows": len(frames[0]["records"])}]
    return [{**frame, "first": number, "rows": 1, "parts": ()} for number, frame in enumerate(frames)]


def _overlaps(frame: Mapping[str, Any], indexes: range) -> bool:
    if not indexes:
        return False
    first, last = min(indexes[0], indexes[-1]), max(indexes[0], indexes[-1])
    return bool(frame["first"] <= last and first < frame["first"] + frame["rows"])
