"""Compiled playbooks by digest: once per content, also when it is refused, and never in the way of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from unittest import mock

import pytest

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.adapters.system.background import ThreadBackground
from noetl.core.errors import PlaybookInvalid
from noetl.core.playbook.compile import compile_playbook
from noetl.core.reference import MEDIA_PLAYBOOK
from noetl.engine import playbooks as module
from noetl.engine.payloads import Payloads
from noetl.engine.playbooks import CACHE_PLAYBOOKS_MAX, Playbooks
from tests.support.aio import asynchronous
from tests.support.yaml import HEAD

KINDS = frozenset({"noop", "python"})


def small(name: str = "a") -> str:
    return f"{HEAD}surprise: 1\nworkflow: [{{step: {name}, tool: {{kind: noop}}}}]\n"


def large(steps: int) -> str:
    lines = [HEAD + "workload: {a: 1}", "workflow:"]
    for number in range(steps):
        target = f"s{(number + 1) % steps}"
        lines += [
            f"- step: s{number}",
            f'  tool: {{kind: python, input: {{x: "{{{{ workload.a + {number} }}}}"}}, code: "result = x"}}',
            f'  next: {{arcs: [{{step: {target}, when: "{{{{ s{number}.v > {number} }}}}"}}]}}',
        ]
    return "\n".join(lines)


def cache(background: ThreadBackground | None = None, kinds: frozenset[str] = KINDS) -> Playbooks:
    return Playbooks(Payloads(small=MemoryPayloads({}), large=MemoryPayloads({})), kinds=kinds, background=background)


@pytest.fixture
def compiled() -> Iterator[mock.Mock]:
    """Counts what is really compiled."""
    with mock.patch.object(module, "compile_playbook", wraps=compile_playbook) as counted:
        yield counted


@asynchronous
async def test_a_content_is_compiled_once_and_its_warnings_name_the_file_of_today(compiled: mock.Mock) -> None:
    playbooks = cache()
    first = await playbooks.compile(small(), file="one.yaml")
    second = await playbooks.compile(small(), file="two.yaml")
    assert compiled.call_count == 1
    assert (first.steps, first.digest) == (second.steps, second.digest)
    assert [warning.file for warning in (*first.warnings, *second.warnings)] == ["one.yaml", "two.yaml"]


@asynchronous
async def test_a_refusal_is_found_once_and_told_with_the_file_of_today(compiled: mock.Mock) -> None:
    playbooks = cache()
    for file in ("one.yaml", "two.yaml"):
        with pytest.raises(PlaybookInvalid, match=rf"^{file}:.*nonsense"):
            await playbooks.compile(small().replace("noop", "nonsense"), file=file)
    assert compiled.call_count == 1


@asynchronous
async def test_other_kinds_are_another_cache() -> None:
    with pytest.raises(PlaybookInvalid):
        await cache().compile(small().replace("noop", "special"), file="x")
    assert await cache(kinds=KINDS | {"special"}).compile(small().replace("noop", "special"), file="x")


@asynchronous
async def test_the_longest_unused_go_first(compiled: mock.Mock) -> None:
    playbooks = cache()
    await playbooks.compile(small("first"), file="x")
    for number in range(CACHE_PLAYBOOKS_MAX):
        await playbooks.compile(small(f"s{number}"), file="x")
    await playbooks.compile(small("s5"), file="x")
    assert compiled.call_count == CACHE_PLAYBOOKS_MAX + 1
    await playbooks.compile(small("first"), file="x")
    assert compiled.call_count == CACHE_PLAYBOOKS_MAX + 2


@asynchronous
async def test_a_pinned_playbook_is_read_and_compiled_once(compiled: mock.Mock) -> None:
    playbooks = cache()
    owner = {"tenant_id": "acme", "organization_id": "sales"}
    payload = await playbooks._payloads.keep(small().encode(), media_type=MEDIA_PLAYBOOK, **owner)
    await playbooks._payloads.store(payload)
    for _ in range(2):
        found = await playbooks.pinned(payload.reference.to_json(), **owner)
        assert found.digest == payload.reference.sha256
    assert compiled.call_count == 1


@asynchronous
async def test_the_loop_goes_on_while_a_large_playbook_is_compiled(compiled: mock.Mock) -> None:
    playbooks = cache(ThreadBackground())
    text, lags = large(400), []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - before)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        started = time.perf_counter()
        many = await asyncio.gather(*(playbooks.compile(text, file=f"{number}") for number in range(5)))
        took = time.perf_counter() - started
        watching.cancel()
    lags.sort()
    # Not the worst one: the machine has other things to do, and so has the garbage collector.
    assert lags[int(len(lags) * 0.9)] < took / 4, lags[-5:]
    # Those that came meanwhile waited for the first and found what it left.
    assert compiled.call_count == 1
    assert len({one.digest for one in many}) == 1


@asynchronous
async def test_a_large_playbook_is_refused_beside_the_loop_as_well(compiled: mock.Mock) -> None:
    playbooks = cache(ThreadBackground())
    text = large(60).replace("kind: python", "kind: nonsense", 1)
    for _ in range(2):
        with pytest.raises(PlaybookInvalid, match="nonsense"):
            await playbooks.compile(text, file="x")
    assert compiled.call_count == 1
