"""A part of a payload is checked by itself: damage that is still good JSON must not be taken for a value."""

from __future__ import annotations

import pytest

from noetl.core.errors import PayloadCorrupt
from tests.support.aio import asynchronous
from tests.unit.test_stored_reader import Shelf

ROWS = {"rows": [{"n": number, "text": "x" * 400} for number in range(3_000)]}


@asynchronous
async def test_a_part_with_another_value_is_never_returned() -> None:
    shelf = Shelf()
    reference = await shelf.keep(ROWS)
    assert reference["index"] is not None
    key = ("acme", "sales", reference["sha256"])
    content = shelf.store._contents[key]
    assert content.count(b'"n":2000,') == 1
    shelf.store._contents[key] = content.replace(b'"n":2000,', b'"n":2001,')
    assert await shelf.ask("s.rows[0].n") == 0
    with pytest.raises(PayloadCorrupt, match="another digest"):
        await shelf.ask("s.rows[2000].n")
