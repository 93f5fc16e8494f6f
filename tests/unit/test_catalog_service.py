"""Registering playbooks and finding them, over the memory adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from noetl.adapters.memory.catalog import MemoryCatalog
from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.adapters.objects.scripts import RootedScripts
from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid, PlaybookUnknown, RequestInvalid
from noetl.core.limits import CATALOG_WARNINGS_MAX
from noetl.engine.catalog import CatalogService, Registered
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
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


def service(*roots: Path) -> CatalogService:
    payloads = Payloads(small=MemoryPayloads({}), large=MemoryPayloads({}))
    playbooks = Playbooks(payloads, kinds=frozenset({"noop", "python", "playbook", "spark"}))
    catalog, clock = MemoryCatalog(VirtualClock()), VirtualClock()
    pinner = Pinner(ScriptPinner(RootedScripts(roots), payloads), catalog=catalog)
    return CatalogService(catalog, playbooks=playbooks, payloads=payloads, pinner=pinner, ids=VirtualIds(clock, node=1))


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


# --- scripts ---------------------------------------------------------------------------------------------


def scripted(script: str = "clean.py", kind: str = "python") -> str:
    return playbook().replace("{kind: noop}", f"{{kind: {kind}, script: {script!r}}}")


@asynchronous
async def test_a_script_belongs_to_its_version_and_another_text_of_it_is_another_version(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    file = tmp_path / "clean.py"
    told = []
    for text in ("x = 1", "x = 2", "x = 1"):
        file.write_text(text)
        told.append(await register(catalog, scripted()))
    assert [(one.version, one.created) for one in told] == [(1, True), (2, True), (1, False)]
    assert {one.sha256 for one in told} == {sha256_hex(scripted().encode())}
    assert told[0].digest == told[2].digest != told[1].digest
    file.unlink()
    for version, text in ((1, "x = 1"), (2, "x = 2")):
        found = await catalog.find("hello", version=version, owner=ME)
        assert await catalog.scripts(found.entry) == {"clean.py": text}


@asynchronous
async def test_a_script_that_came_along_is_taken_before_one_of_a_root(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    (tmp_path / "clean.py").write_text("of the root")
    await catalog.register(scripted(), file="some.yaml", owner=ME, scripts={"clean.py": "sent", "other.py": "unused"})
    found = await catalog.find("hello", owner=ME)
    assert await catalog.scripts(found.entry) == {"clean.py": "sent"}


@asynchronous
async def test_a_missing_script_is_refused_with_step_task_path_and_roots(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    with pytest.raises(PlaybookInvalid) as caught:
        await register(catalog, scripted("lib/absent.py"))
    [problem] = caught.value.problems
    assert (problem.code, problem.line, problem.step, problem.field) == ("script_missing", 7, "start", "script")
    said = str(problem)
    for part in ("some.yaml:7:", "step 'start', task 'start_task'", "'lib/absent.py'", str(tmp_path)):
        assert part in said
    assert await catalog.list(owner=ME) == []
    with pytest.raises(PlaybookInvalid, match="NOETL_SCRIPT_ROOTS names no other place"):
        await register(service(), scripted())


@asynchronous
async def test_a_script_outside_of_the_roots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.py").write_text("SECRET")
    catalog = service(tmp_path / "root")
    for uri in ("../secret.py", str(tmp_path / "secret.py")):
        with pytest.raises(PlaybookInvalid, match="outside of every root") as caught:
            await register(catalog, scripted(uri))
        assert "SECRET" not in str(caught.value)


@asynchronous
async def test_a_script_that_is_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    (tmp_path / "clean.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlaybookInvalid, match="not UTF-8 text"):
        await register(catalog, scripted())
    with pytest.raises(PlaybookInvalid, match="more than 1,000,000 bytes"):
        await catalog.register(scripted(), file="some.yaml", owner=ME, scripts={"clean.py": "ä" * 500_001})
    many = "\n".join(f"- {{step: s{number}, tool: {{kind: python, script: s{number}.py}}}}" for number in range(101))
    text = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: hello}}\nworkflow:\n{many}\n"
    texts = {f"s{number}.py": "" for number in range(101)}
    with pytest.raises(PlaybookInvalid, match="101 scripts, the limit is 100"):
        await catalog.register(text, file="some.yaml", owner=ME, scripts=texts)


@asynchronous
async def test_a_script_that_cannot_run_is_told(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    (tmp_path / "clean.py").write_text("def main(:\n")
    told = await register(catalog, scripted())
    [warning] = told.warnings
    assert warning.code == "script_syntax"
    assert str(warning).startswith("some.yaml:7:")
    assert "'clean.py': line 1: invalid syntax" in str(warning)


# --- what is missing around it ---------------------------------------------------------------------------

PARENT = playbook("parent").replace("{kind: noop}", "{kind: playbook, path: lib/child}")


@asynchronous
async def test_a_playbook_that_the_catalog_does_not_have_is_a_warning_until_it_has_it() -> None:
    catalog = service()
    told = await register(catalog, PARENT)
    [warning] = told.warnings
    assert (warning.code, warning.line, warning.step) == ("missing_playbook", 7, "start")
    assert "'lib/child'" in str(warning)
    recorded = (await catalog.find("parent", owner=ME)).entry.warnings
    assert [(one["code"], one["line"]) for one in recorded] == [("missing_playbook", 7)]
    assert "file" not in recorded[0]
    await register(catalog, playbook(path="lib/child"))
    again = await register(catalog, PARENT)
    assert (again.version, again.created, again.warnings) == (1, False, ())
    assert (await catalog.find("parent", owner=ME)).entry.warnings == []


@asynchronous
async def test_versions_and_the_own_path_are_told_apart() -> None:
    catalog = service()
    itself = playbook("parent").replace("{kind: noop}", "{kind: playbook, path: parent}")
    assert (await register(catalog, itself)).warnings == ()
    numbered = PARENT.replace("lib/child", "lib/child, version: 2")
    await register(catalog, playbook(path="lib/child"))
    [warning] = (await register(catalog, numbered)).warnings
    assert "'lib/child' in version 2" in warning.message
    await register(catalog, playbook(path="lib/child", note="two"))
    assert (await register(catalog, numbered)).warnings == ()
    templated = PARENT.replace("lib/child", "'lib/{{ execution_id }}'")
    assert (await register(catalog, templated)).warnings == ()


@asynchronous
async def test_checking_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    told = await catalog.check(PARENT, file="p.yaml", owner=ME)
    assert [warning.code for warning in told.warnings] == ["missing_playbook"]
    told = await catalog.check(PARENT, file="p.yaml", owner=ME, beside=["lib/child"])
    assert told.warnings == ()
    with pytest.raises(PlaybookInvalid):
        await catalog.check(scripted(), file="p.yaml", owner=ME)
    assert await catalog.list(owner=ME) == []


@asynchronous
async def test_warnings_are_recorded_and_bounded() -> None:
    catalog = service()
    text = playbook() + "\n".join(f"surprise{number}: 1" for number in range(150)) + "\n"
    told = await register(catalog, text)
    assert len(told.warnings) == 150
    recorded = (await catalog.find("hello", owner=ME)).entry.warnings
    assert len(recorded) == CATALOG_WARNINGS_MAX
    assert recorded[0]["line"] == 8
    assert recorded[-1] == {"code": "more_warnings", "message": "and 51 more"}


# --- comparing -------------------------------------------------------------------------------------------


@asynchronous
async def test_two_versions_are_compared_by_default_the_newest(tmp_path: Path) -> None:
    catalog = service(tmp_path)
    for text in ("x = 1", "x = 2"):
        (tmp_path / "clean.py").write_text(text)
        await register(catalog, scripted())
    await register(catalog, playbook())
    found = await catalog.compare("hello", old=None, new=None, owner=ME)
    assert (found.old.version, found.new.version) == (2, 3)
    assert [change.what for change in found.difference.changes] == ["tool", "script"]
    found = await catalog.compare("hello", old=1, new=2, owner=ME)
    assert [str(change) for change in found.difference.changes] == ["~ script clean.py: its text"]
    with pytest.raises(RequestInvalid, match="no version before version 1"):
        await catalog.compare("hello", old=None, new=1, owner=ME)
    with pytest.raises(PlaybookUnknown):
        await catalog.compare("hello", old=1, new=4, owner=ME)


@asynchronous
async def test_a_version_is_found_by_its_number() -> None:
    catalog = service()
    told = [await register(catalog, playbook(note=note)) for note in ("one", "two")]
    assert told[0].catalog_id != told[1].catalog_id
    found = await catalog.find_id(told[0].catalog_id, owner=ME)
    assert (found.entry.version, found.text) == (1, playbook(note="one"))
    for number, owner in ((told[0].catalog_id, Someone("other")), (7, ME), (0, ME), (-1, ME), (2**63, ME)):
        with pytest.raises(PlaybookUnknown, match="noetl catalog list"):
            await catalog.find_id(number, owner=owner)


@asynchronous
async def test_a_script_that_spark_would_keep_may_not_ask_for_a_secret(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("SELECT '{{ keychain.db.password }}'")
    catalog = service(tmp_path)
    text = playbook().replace("{kind: noop}", "{kind: spark, script: a.sql}")
    with pytest.raises(PlaybookInvalid) as caught:
        await register(catalog, text)
    assert [problem.code for problem in caught.value.problems] == ["spark_secret"]
