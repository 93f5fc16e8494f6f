"""Upcasters: events of older schemas reach the present one step by step, or are refused."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import LedgerCorrupt
from noetl.core.event import Event
from noetl.core.kinds import KINDS
from noetl.core.upcasting.registry import UPCASTERS, Upcaster, Upcasters

NAME = f"noetl.{kinds.TIMER_FIRED}"


def event(version: int) -> Event:
    return Event(
        *(1, 2, "t", "o", kinds.TIMER_FIRED, "2026-01-01T00:00:00.000000Z", "p", "timer.fired/x", "1"),
        meta={"name": "x"},
        schema_version=version,
    )


def renaming(version: int, to_version: int, **fields: Any) -> Upcaster:
    def convert(old: Event) -> Event:
        return old._replace(meta={**old.meta, "name": f"{old.meta['name']}{to_version}"})

    return Upcaster(schema_name=NAME, version=version, to_version=to_version, convert=convert, **fields)


def test_an_event_of_the_present_version_is_itself() -> None:
    present = event(1)
    assert UPCASTERS.upcast(present) is present
    assert all(kind.schema_version == 1 for kind in KINDS.values()), "a later version needs its upcasters"


def test_an_old_event_goes_through_every_step() -> None:
    known = Upcasters([renaming(1, 2), renaming(2, 4)], current={kinds.TIMER_FIRED: 4})
    found = known.upcast(event(1))
    assert (found.schema_version, found.meta["name"]) == (4, "x24")
    assert known.upcast(event(2)).meta["name"] == "x4"


@pytest.mark.parametrize(("version", "current"), [(1, 3), (2, 3), (4, 3), (2, 1)])
def test_an_event_that_nothing_leads_from_is_refused(version: int, current: int) -> None:
    known = Upcasters([renaming(1, 2), renaming(2, 4)], current={kinds.TIMER_FIRED: current})
    with pytest.raises(LedgerCorrupt, match="nothing leads there"):
        known.upcast(event(version))


def test_an_upcaster_must_advance_and_be_the_only_one_of_its_version() -> None:
    with pytest.raises(AssertionError, match="advances"):
        renaming(2, 2)
    with pytest.raises(AssertionError, match="one way"):
        Upcasters([renaming(1, 2), renaming(1, 3)])


def test_the_digest_tells_registries_apart() -> None:
    current = {kinds.TIMER_FIRED: 3}
    known = [Upcasters(current=current), Upcasters([renaming(1, 3)], current=current)]
    known.append(Upcasters([renaming(1, 3, revision=2)], current=current))
    known.append(Upcasters(current={kinds.TIMER_FIRED: 2}))
    assert len({one.digest for one in known}) == 4
    assert Upcasters().digest == UPCASTERS.digest
