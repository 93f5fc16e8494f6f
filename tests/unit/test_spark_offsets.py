"""Offsets of the ledger: every position in exactly one batch, whatever the limits and the heads are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.adapters.spark.sources.events.offsets import Offset, advanced, beginning, offset_from
from noetl.adapters.spark.sources.events.options import EventOptions, event_options
from noetl.adapters.spark.sources.events.rows import WINDOW_POSITIONS, Window, windows
from noetl.core.errors import LedgerCorrupt, RequestInvalid
from noetl.ports.data.sources import LedgerHeads

OPTIONS = EventOptions(tenant_id="acme", organization_id="sales")


def heads(**positions: int) -> LedgerHeads:
    return LedgerHeads(incarnation="one", positions={int(name[1:]): last for name, last in positions.items()})


def enclosed(start: Offset, end: Offset) -> list[tuple[int, int]]:
    """Every position that the windows between two offsets have."""
    found = []
    for one in windows(start, end, OPTIONS):
        assert isinstance(one, Window)
        assert one.window is not None
        places = range(one.window.after_position + 1, one.window.until_position + 1)
        found += [(one.window.shard_id, position) for position in places]
    return found


@given(
    st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 40), max_size=4), min_size=1, max_size=6),
    st.integers(1, 25),
)
def test_batches_have_every_position_once(growth: list[dict[int, int]], events_max: int) -> None:
    last = dict.fromkeys(range(3), 0)
    at = beginning(LedgerHeads(incarnation="one", positions=last))
    read: list[tuple[int, int]] = []
    growing = iter(growth)
    while (more := next(growing, None)) is not None or dict(at.positions) != last:
        more = more or {}
        last = {shard: last.get(shard, 0) + more.get(shard, 0) for shard in {*last, *more}}
        end = advanced(at, LedgerHeads(incarnation="one", positions=last), events_max)
        batch = enclosed(at, end)
        assert len(batch) <= events_max
        read += batch
        at = offset_from(end.to_json())
    assert sorted(read) == sorted((shard, n) for shard, head in last.items() for n in range(1, head + 1))


def test_a_small_batch_takes_from_every_shard() -> None:
    end = advanced(beginning(heads(s0=100, s1=100)), heads(s0=100, s1=100), 10)
    assert end.positions == {0: 5, 1: 5}


def test_a_large_window_is_cut() -> None:
    start, head = Offset("one", {0: 3}), 3 + 2 * WINDOW_POSITIONS + 1
    assert len(windows(start, Offset("one", {0: head}), OPTIONS)) == 3


def test_an_offset_of_another_life_of_the_ledger_is_refused() -> None:
    with pytest.raises(LedgerCorrupt, match="another life"):
        advanced(Offset("other", {0: 1}), heads(s0=5), None)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"from": "yesterday"}, "option from"),
        ({"from": "2026-01-01T00:00:00"}, "a time with its zone"),
        ({"execution": "12a"}, "option execution"),
        ({"event_types": "frame.done"}, "no events of type"),
        ({"events_per_batch": "0"}, "events_per_batch"),
        ({"tennant": "x"}, "no option 'tennant'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(RequestInvalid, match=match):
        event_options(options, tenant_id="acme", organization_id="sales")
