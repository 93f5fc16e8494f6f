"""Scripts in a worker, and the folders that they may come from."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.adapters.objects.scripts import RootedScripts
from noetl.core.errors import Failure, SettingsInvalid, ToolFailed
from noetl.core.limits import SCRIPT_BYTES_MAX, SCRIPTS_RECORDED_MAX
from noetl.core.reference import MEDIA_SCRIPT
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.scripts import Scripts
from noetl.engine.work.pipeline.run import Run
from noetl.ports.session import CommandMessage
from noetl.ports.tool import ToolResult
from noetl.settings import read_settings
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}


def payloads() -> Payloads:
    return Payloads(small=MemoryPayloads({}), large=MemoryPayloads({}))


def scripts(*roots: Path, store: Payloads | None = None, pinned: Mapping[str, object] | None = None) -> Scripts:
    parts: Any = SimpleNamespace(payloads=store or payloads(), scripts=RootedScripts(roots))
    body = {} if pinned is None else {"scripts": pinned}
    message = CommandMessage(execution_id=1, command_id="s#1", attempt=1, body=body, **OWNER)
    return Scripts(parts, message)


async def nobody(fields: Mapping[str, object]) -> ToolResult:
    raise AssertionError(f"asked for {fields}")


def file(uri: str) -> dict[str, object]:
    return {"uri": uri, "source": {"type": "file"}}


@asynchronous
async def test_what_is_pinned_comes_by_reference_and_not_from_a_file(tmp_path: Path) -> None:
    store = payloads()
    payload = await store.keep(b"pinned", media_type=MEDIA_SCRIPT, **OWNER)
    await store.store(payload)
    (tmp_path / "a.py").write_text("of today")
    loading = scripts(tmp_path, store=store, pinned={"a.py": payload.reference.to_json()})
    assert (await loading.load(file("a.py"), nobody)).text == "pinned"
    assert loading.fetched == {}


@asynchronous
async def test_a_command_sees_one_content_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    loading = scripts(tmp_path)
    texts = [(await loading.load(file("a.py"), nobody)).text]
    (tmp_path / "a.py").write_text("two")
    texts.append((await loading.load(file("a.py"), nobody)).text)
    assert texts == ["one", "one"]
    assert (await scripts(tmp_path).load(file("a.py"), nobody)).text == "two"


@asynchronous
async def test_an_address_is_asked_once_although_many_want_it() -> None:
    asked: list[Mapping[str, object]] = []

    async def ask(fields: Mapping[str, object]) -> ToolResult:
        asked.append(fields)
        await asyncio.sleep(0.01)
        return ToolResult(value={"body": "text"})

    loading = scripts()
    source = {"type": "http", "endpoint": "https://me:secret@host/a.py?key=secret", "headers": {"X": "1"}, "bogus": 1}
    found = await asyncio.gather(*(loading.load({"uri": "a.py", "source": source}, ask) for _ in range(5)))
    assert {one.text for one in found} == {"text"}
    assert asked == [{"url": source["endpoint"], "headers": {"X": "1"}, "response_type": "text"}]
    assert list(loading.fetched) == ["https://host/a.py"]


@asynchronous
async def test_an_address_that_fails_is_asked_again_and_its_failure_is_the_tasks() -> None:
    answers = [
        ToolResult(failure=Failure(kind="server_error", message="GET https://host/a.py: 503", status=503)),
        ToolResult(value={"body": {"_ref": "somewhere"}}),
        ToolResult(value={"body": "x" * (SCRIPT_BYTES_MAX + 1)}),
        ToolResult(value={"body": "at last"}),
    ]

    async def ask(_fields: Mapping[str, object]) -> ToolResult:
        return answers.pop(0)

    loading = scripts()
    wanted = {"uri": "https://host/a.py?key=secret", "source": {"type": "http"}}
    failures = []
    for _ in range(3):
        with pytest.raises(ToolFailed) as caught:
            await loading.load(wanted, ask)
        failures.append(caught.value.failure)
    assert (failures[0].kind, failures[0].status) == ("server_error", 503)
    assert "the answer is no text" in failures[1].message
    assert "more than 1,000,000 characters" in failures[2].message
    assert not any("secret" in failure.message for failure in failures)
    assert (await loading.load(wanted, ask)).text == "at last"


@pytest.mark.parametrize(
    ("descriptor", "kind", "said"),
    [
        ({"uri": "x", "source": {"type": "gcs"}}, "unsupported", "type gcs"),
        ({"uri": "x", "source": {"type": "ftp"}}, "config", "must be one of"),
        ({"uri": "", "source": {"type": "file"}}, "config", "uri is empty"),
        ({"uri": 5, "source": {"type": "file"}}, "config", "no mapping"),
        ({"uri": "x", "source": None}, "config", "no mapping"),
        (None, "config", "no mapping"),
        ({"uri": "absent.py", "source": {"type": "file"}}, "config", "no such file"),
        ({"uri": "bytes.py", "source": {"type": "file"}}, "config", "not UTF-8"),
    ],
)
@asynchronous
async def test_what_cannot_be_loaded_fails_the_task(tmp_path: Path, descriptor: object, kind: str, said: str) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xff")
    with pytest.raises(ToolFailed) as caught:
        await scripts(tmp_path).load(descriptor, nobody)
    assert (caught.value.failure.kind, caught.value.failure.code) == (kind, "SCRIPT_UNAVAILABLE")
    assert said in caught.value.failure.message


@asynchronous
async def test_a_type_that_a_template_chose_may_be_inline() -> None:
    found = await scripts().load({"uri": None, "source": {"type": "inline", "code": "result = 1"}}, nobody)
    assert found.text == "result = 1"


@asynchronous
async def test_only_so_many_scripts_are_named_on_an_event(tmp_path: Path) -> None:
    loading = scripts(tmp_path)
    for number in range(SCRIPTS_RECORDED_MAX + 5):
        (tmp_path / f"{number}.py").write_text(str(number))
        assert (await loading.load(file(f"{number}.py"), nobody)).text == str(number)
    assert len(loading.fetched) == SCRIPTS_RECORDED_MAX


def test_a_resume_point_remembers_what_was_fetched() -> None:
    run = Run(scripts={"a.py": {"sha256": "1"}})
    assert Run(**run.to_json()).scripts == run.scripts  # type: ignore[arg-type]


# --- settings --------------------------------------------------------------------------------------------


def roots(**environment: str) -> tuple[str, ...]:
    settings = read_settings({"NOETL_HOME": "/srv/noetl", **environment})
    return tuple(map(str, settings.script_roots))


def test_scripts_are_in_the_home_unless_other_folders_are_named() -> None:
    assert roots() == ("/srv/noetl/scripts",)
    assert roots(NOETL_SCRIPT_ROOTS=os.pathsep.join(("/opt/a", "", "/opt/b"))) == ("/opt/a", "/opt/b")
    assert roots(NOETL_SCRIPT_ROOTS="") == ()


@pytest.mark.parametrize("value", ["relative/folder", ".", "/", f"/opt/a{os.pathsep}b"])
def test_a_root_is_an_absolute_folder_and_not_everything(value: str) -> None:
    with pytest.raises(SettingsInvalid, match="NOETL_SCRIPT_ROOTS must be absolute folders"):
        roots(NOETL_SCRIPT_ROOTS=value)
