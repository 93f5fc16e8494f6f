"""Streams that a child process wrote into a file.  User code may have written them: nothing in them is believed.

The frame of the stream is walked before Arrow sees it.  Compressed bodies are refused, because a small file could then
become any amount of memory; a file without them can only become as much as it is."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from noetl.adapters.arrow.codec import DAMAGE, first_line, invalid
from noetl.adapters.arrow.plainfiles import open_plain
from noetl.core.limits import TABLE_MESSAGES_MAX

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedStream:
    """`length` is that of the stream: behind its end there may be anything."""

    reader: Any
    length: int
    messages: int


def open_landed(path: Path, offset: int) -> LandedStream:
    """Raises ToolFailed when it is no readable stream."""
    try:
        descriptor = open_plain(path)
        try:
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise invalid(f"the table cannot be read: {first_line(error)}") from error
    content = pa.py_buffer(mapped)
    if offset > content.size:
        raise invalid("the table cannot be read: the file is shorter than the room before its stream")
    content = content.slice(offset)
    length, messages = walked(memoryview(content))
    try:
        reader = ipc.open_stream(content.slice(0, length))
    except DAMAGE as error:
        raise invalid(f"the table cannot be read: {first_line(error)}") from error
    return LandedStream(reader=reader, length=length, messages=messages)


def walked(content: memoryview) -> tuple[int, int]:
    """How long a stream is and how many messages it has."""
    end = messages = 0
    try:
        for message_end, kind, metadata in _messages(content):
            end = message_end
            messages += 1
            if (kind == _SCHEMA) != (messages == 1) or messages > TABLE_MESSAGES_MAX:
                raise invalid("the table cannot be read: its messages are not those of one stream")
            if kind in (_DICTIONARY, _BATCH) and _is_compressed(metadata, kind):
                raise invalid("the table is compressed: a table is handed over without compression")
    except (struct.error, IndexError, ValueError) as error:
        raise invalid(f"the table cannot be read: {first_line(error)}") from error
    if not messages:
        raise invalid("the table cannot be read: it is empty and has no schema")
    return end, messages


def _messages(content: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """End, kind and metadata of each message, and the end of the stream behind the last one."""
    place = 0
    while True:
        mark, size = _PREFIX.unpack_from(content, place)
        if mark != _CONTINUATION or size < 0:
            raise ValueError("it is no Arrow stream")
        place += _PREFIX.size
        if size == 0:
            return
        metadata = content[place : place + size]
        message = _Table.root(metadata)
        body = message.number(3, "<q")
        if len(metadata) != size or body < 0 or place + size + body + _PREFIX.size > len(content):
            raise ValueError("it ends before its end")
        place += size + body
        yield place + _PREFIX.size, message.number(1, "<B"), metadata


def _is_compressed(metadata: memoryview, kind: int) -> bool:
    header = _Table.root(metadata).table(2)
    batch = header.table(1) if kind == _DICTIONARY else header
    return batch.has(3)


@dataclass(frozen=True, slots=True)
class _Table:
    """As much of the format of Arrow's metadata (flatbuffers) as is needed to find a member."""

    content: memoryview
    place: int

    @classmethod
    def root(cls, content: memoryview) -> _Table:
        (place,) = struct.unpack_from("<I", content, 0)
        return cls(content, place)

    def has(self, member: int) -> bool:
        return self._offset(member) != 0

    def number(self, member: int, layout: str) -> int:
        offset = self._offset(member)
        return int(struct.unpack_from(layout, self.content, self.place + offset)[0]) if offset else 0

    def table(self, member: int) -> _Table:
        offset = self._offset(member)
        if not offset:
            raise ValueError("a message lacks its header")
        place = self.place + offset
        (relative,) = struct.unpack_from("<I", self.content, place)
        return _Table(self.content, place + relative)

    def _offset(self, member: int) -> int:
        (back,) = struct.unpack_from("<i", self.content, self.place)
        names = self.place - back
        if names < 0:
            raise ValueError("a message is damaged")
        (size,) = struct.unpack_from("<H", self.content, names)
        entry = 4 + 2 * member
        return int(struct.unpack_from("<H", self.content, names + entry)[0]) if entry + 2 <= size else 0
