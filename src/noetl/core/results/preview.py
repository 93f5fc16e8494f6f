"""The beginning of a value's JSON, without writing, or reading, more of it than is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from noetl.core.codec import ordered_bytes
from noetl.core.expression import LoopView, PipelineView, View, data_of, find
from noetl.core.expression.views import sample

_ITEM_CHARS_MAX = 4_096
"""Of one long text at most so much is looked at before it is cut."""


def preview_of(value: object, bytes_max: int) -> str:
    """At most so many bytes of text.  Of a list pipeline the results of its tasks are shown, of a loop its rows."""
    shown = b""
    for piece in _pieces(_shown(value)):
        shown += piece
        if len(shown) > bytes_max:
            break
    return shown[:bytes_max].decode("utf-8", "ignore")


def _shown(value: object) -> object:
    if isinstance(value, PipelineView):
        return dict(value._results)
    if isinstance(value, LoopView):
        return data_of(value._rows)
    return data_of(value)


def _pieces(value: object) -> Iterator[bytes]:
    kind = sample(value)
    if isinstance(kind, dict):
        yield from _joined(b"{", b"}", ((ordered_bytes(key) + b":", find(value, key)) for key in _keys(value)))
    elif isinstance(kind, list):
        size = len(value)  # type: ignore[arg-type]
        yield from _joined(b"[", b"]", ((b"", find(value, index)) for index in range(size)))
    elif isinstance(value, str):
        yield ordered_bytes(value[:_ITEM_CHARS_MAX])
    else:
        yield ordered_bytes(value._plain() if isinstance(value, View) else value)


def _keys(value: object) -> Iterable[str]:
    return map(str, value)  # type: ignore[call-overload,no-any-return]


def _joined(start: bytes, end: bytes, items: Iterable[tuple[bytes, object]]) -> Iterator[bytes]:
    yield start
    for number, (prefix, item) in enumerate(items):
        yield (b"," if number else b"") + prefix
        yield from _pieces(item)
    yield end
