"""Whatever a reference may say, a worker may send."""

from __future__ import annotations

from dataclasses import fields

import msgspec

from noetl.core.reference import Reference
from noetl.processes.server.wire import ReferenceIn


def test_the_wire_knows_every_member_of_a_reference() -> None:
    known = {field.name for field in msgspec.structs.fields(ReferenceIn)}
    assert known == {field.name for field in fields(Reference)}
