"""Registering playbooks and finding them, over the memory adapters."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from noetl.adapters.memory.catalog import MemoryCatalog
from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid, PlaybookUnknown, RequestInvalid
from noetl.engine.catalog import CatalogService, Registered
from noetl.engine.payloads import Payloads
from noetl.engine.playbooks import Playbooks
from tests.support.aio import asynchronous


@dataclass(frozen=True)
class Someone:
    tenant_id: str = "acme"
    organization_id: str = "sales"


ME = Someone()


def playbook(name: str = "hello", *, path: str | None = None, note: str = "") -> str:
    place = "" if path is None else f", path: {path!r}"
    return (
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}{place}}}\n"
        f"# {note}\nworkflow:\n- step: start\n  tool: {{kind: noop}}\n"
    )


def service() -> CatalogService:
    payloads = Payloads(small=MemoryPayloads({}), large=MemoryPayloads({}))
    playbooks = Playbooks(payloads, kinds=frozenset({"noop"}))
    return CatalogService(MemoryCatalog(VirtualClock()), playbooks=playbooks, payloads=payloads)


async def register(catalog: CatalogService, text: str, owner: Someone = ME) -> Registered:
    return await catalog.register(text, file="some.yaml", owner=owner)


@asynchronous
async def test_a_registered_playbook_is_found_with_its_text() -> None:
    catalog = service()
    text = playbook(path="examples/hello")
    told = await register(catalog, text)
    assert (told.path, told.version, told.newest, told.created) == ("examples/hello", 1, 1, True)
    assert told.sha256 == sha256_hex(text.encode())
    found = await catalog.find("examples/hello", owner=ME)
    assert found.text == text
    assert (found.entry.version, found.entry.name, found.entry.sha256) == (1, "hello", told.sha256)


@asynchronous
async def test_without_a_path_the_name_is_the_path() -> None:
    catalog = service()
    assert (await register(catalog, playbook("plain"))).path == "plain"


@asynchronous
async def test_the_leading_slash_counts() -> None:
    catalog = service()
    await register(catalog, playbook(path="/a"))
    assert (await catalog.find("/a", owner=ME)).entry.path == "/a"
    with pytest.raises(PlaybookUnknown):
        await catalog.find("a", owner=ME)


@asynchronous
async def test_versions_are_contents_and_old_ones_stay() -> None:
    catalog = service()
    texts = [playbook(note=f"version {number}") for number in (1, 2, 3)]
    for text in texts:
        await register(catalog, text)
    assert [entry.version for entry in await catalog.versions("hello", owner=ME)] == [3, 2, 1]
    assert (await catalog.find("hello", owner=ME)).text == texts[2]
    for number, text in enumerate(texts, start=1):
        assert (await catalog.find("hello", version=number, owner=ME)).text == text


@asynchronous
async def test_old_content_that_comes_again_is_its_old_version_and_the_newest_is_told() -> None:
    catalog = service()
    await register(catalog, playbook(note="one"))
    await register(catalog, playbook(note="two"))
    told = await register(catalog, playbook(note="one"))
    assert (told.version, told.newest, told.created) == (1, 2, False)


@asynchronous
async def test_a_large_playbook_is_kept_as_well() -> None:
    catalog = service()
    text = playbook(note="x" * 100_000)
    await register(catalog, text)
    assert (await catalog.find("hello", owner=ME)).text == text


@asynchronous
async def test_an_invalid_playbook_is_refused_with_its_file_and_leaves_nothing() -> None:
    catalog = service()
    with pytest.raises(PlaybookInvalid, match=r"some\.yaml.*nonsense"):
        await register(catalog, playbook().replace("noop", "nonsense"))
    assert await catalog.list(owner=ME) == []


@asynchronous
async def test_a_path_that_is_too_long_is_refused() -> None:
    catalog = service()
    with pytest.raises(PlaybookInvalid, match=r"some\.yaml: metadata\.path has 301 characters, the catalog takes 300"):
        await register(catalog, playbook(path="x" * 301))
    assert (await register(catalog, playbook(path="x" * 300))).version == 1


@asynchronous
async def test_warnings_come_with_the_answer_also_the_second_time() -> None:
    catalog = service()
    text = playbook() + "surprise: 1\n"
    for _ in range(2):
        told = await register(catalog, text)
        assert any("surprise" in str(warning) for warning in told.warnings)


@asynchronous
async def test_the_list_can_be_narrowed_and_is_bounded() -> None:
    catalog = service()
    for path in ("b", "a/two", "a/one"):
        await register(catalog, playbook(path=path))
    assert [entry.path for entry in await catalog.list(owner=ME)] == ["a/one", "a/two", "b"]
    assert [entry.path for entry in await catalog.list(owner=ME, prefix="a/", limit=1)] == ["a/one"]
    assert await catalog.list(owner=ME, prefix="\x00") == []
    for limit in (0, -1, 1_001):
        with pytest.raises(RequestInvalid, match="between 1 and 1,000"):
            await catalog.list(owner=ME, limit=limit)


@pytest.mark.parametrize(
    ("path", "version"), [("hello", 2), ("hello", 0), ("hello", -1), ("hello", 2**40), ("", None), ("a\x00", None)]
)
@asynchronous
async def test_what_is_not_there_is_unknown(path: str, version: int | None) -> None:
    catalog = service()
    await register(catalog, playbook())
    with pytest.raises(PlaybookUnknown, match="noetl catalog list"):
        await catalog.find(path, version=version, owner=ME)


@asynchronous
async def test_another_owner_finds_nothing_and_the_answer_is_the_same() -> None:
    catalog = service()
    await register(catalog, playbook())
    answers = []
    for owner, path in ((Someone("other"), "hello"), (Someone(organization_id="x"), "hello")):
        with pytest.raises(PlaybookUnknown) as caught:
            await catalog.find(path, owner=owner)
        answers.append(str(caught.value))
        with pytest.raises(PlaybookUnknown):
            await catalog.versions(path, owner=owner)
        assert await catalog.list(owner=owner) == []
    assert len(set(answers)) == 1
