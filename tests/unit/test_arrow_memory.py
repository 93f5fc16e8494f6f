"""Tables that a process holds: bounded, the longest unused goes first, and nobody is disturbed who has one open."""

from __future__ import annotations

from pathlib import Path

from noetl.adapters.arrow.opening.memory import FILES_MAX, HeldTables
from noetl.adapters.arrow.opening.opened import TableContent
from noetl.ports.data.tables import MappedFile
from tests.support.arrow import numbers


def content(size: int, until_us: int | None = None) -> TableContent:
    table = numbers(3)
    return TableContent(schema=table.schema, batches=table.to_batches(), size=size, until_us=until_us)


def key(name: str, tenant: str = "acme") -> tuple[str, str, str]:
    return (tenant, "sales", name)


def test_the_longest_unused_goes_first() -> None:
    held = HeldTables(100)
    for name in "abc":
        held.add(key(name), content(30))
    assert held.get(key("a")) is not None
    held.add(key("d"), content(30))
    assert held.get(key("b")) is None
    assert held.get(key("a")) is not None
    assert held.bytes_in_use == 90


def test_one_that_would_push_out_most_others_is_not_held() -> None:
    held = HeldTables(100)
    held.add(key("a"), content(30))
    held.add(key("huge"), content(51))
    assert held.get(key("huge")) is None
    assert held.get(key("a")) is not None


def test_the_same_table_again_is_counted_once() -> None:
    held = HeldTables(100)
    held.add(key("a"), content(30))
    held.add(key("a"), content(40))
    assert held.bytes_in_use == 40
    held.forget(key("a"))
    held.forget(key("a"))
    assert held.bytes_in_use == 0


def test_tenants_do_not_see_each_other() -> None:
    held = HeldTables(100)
    held.add(key("a"), content(1))
    assert held.get(key("a", tenant="other")) is None


def test_segments_are_let_go_when_their_lease_ends() -> None:
    held = HeldTables(100)
    held.add(key("ended"), content(1, until_us=10))
    held.add(key("leased"), content(1, until_us=30))
    held.add(key("own"), content(1))
    held.forget_expired(20)
    assert [held.get(key(name)) is None for name in ("ended", "leased", "own")] == [True, False, False]


def test_only_so_many_mapped_files_are_held_however_small_they_are() -> None:
    held = HeldTables(100_000)
    held.add(key("in memory"), content(1))
    for number in range(FILES_MAX + 2):
        one = content(1)
        one.file = MappedFile(path=Path(f"/{number}"), offset=0, length=1)
        held.add(key(str(number)), one)
    assert [held.get(key(str(number))) is None for number in (0, 1, 2)] == [True, True, False]
    assert held.get(key("in memory")) is not None
    assert held.bytes_in_use == FILES_MAX + 1
