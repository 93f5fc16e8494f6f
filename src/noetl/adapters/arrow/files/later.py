"""The formats without Arrow, until they are needed."""

from __future__ import annotations

from noetl.ports.data.formats import TableFormats


def table_formats() -> TableFormats:
    from noetl.adapters.arrow.files.formats import ArrowFormats  # noqa: PLC0415 - loading Arrow takes its time

    return ArrowFormats()
