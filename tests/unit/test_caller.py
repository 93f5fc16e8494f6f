"""Calling a tool: what it was given is scrubbed from whatever comes out of it, also from what nobody expected."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.errors import Failure, LeaseLost, ToolFailed
from noetl.core.playbook.compile import compile_playbook
from noetl.core.secret import Secret
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.parts import WorkerParts
from noetl.ports.secrets import Credential
from noetl.ports.session import CommandMessage
from noetl.ports.tool import Script, ToolCall, ToolResult
from noetl.settings import read_settings
from tests.support.aio import asynchronous
from tests.support.playbooks import FILE, document

CANARY = "canary-Zq8fX2"
MESSAGE = CommandMessage(1, "acme", "sales", "a#1", 1, {"step": "a"})


class Odd:
    """Does with its credential what a test says."""

    kind = "odd"

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.outcome: ToolResult | BaseException = ToolResult()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class Store:
    async def open(self, name: str, *, tenant_id: str, organization_id: str) -> Credential:
        assert (tenant_id, organization_id) == ("acme", "sales")
        return Credential(name=name, type="bearer", data=Secret({"token": CANARY}))


def caller(tool: Odd, environment: dict[str, str] | None = None) -> Caller:
    store = MemoryPayloads({})
    parts = WorkerParts(
        session=cast("Any", None),
        playbooks=cast("Any", None),
        payloads=Payloads(small=store, large=store),
        tools={tool.kind: tool},
        renderer=cast("Any", None),
        clock=VirtualClock(),
        credentials=Store(),
        environment={name: Secret(value) for name, value in (environment or {}).items()},
    )
    playbook = compile_playbook(
        document("workflow: [{step: a, tool: {kind: noop}}]"), file=FILE, kinds=frozenset(("noop",))
    )
    return Caller(parts, MESSAGE, playbook=playbook, names={"workload": {}})


def call(auth: object) -> ToolCall:
    return ToolCall(
        fields={"auth": auth, "url": "x"},
        input={},
        names={},
        context=None,
        timeout_seconds=1.0,
        tenant_id="acme",
        organization_id="sales",
        execution_id=1,
        step="a",
        label="t",
    )


@asynchronous
async def test_a_tool_gets_the_credential_and_not_the_word_for_it() -> None:
    tool = Odd()
    await caller(tool).run("odd", call("api"))
    (given,) = tool.calls
    assert "auth" not in given.fields
    assert isinstance(given.auth, Credential)
    assert given.auth.data.reveal() == {"token": CANARY}


@asynchronous
async def test_everything_that_a_tool_returns_is_scrubbed() -> None:
    tool = Odd()
    failure = Failure(kind="unknown", message=CANARY, details={"seen": [CANARY]})
    tool.outcome = ToolResult(
        value={CANARY: CANARY}, parts={(CANARY,): {}}, failure=failure, traceback=CANARY, facts={"f": CANARY}
    )
    result = await caller(tool).run("odd", call("api"))
    assert CANARY not in repr(result)
    assert result.failure is not None
    assert result.failure.details == {"seen": ["***"]}


@asynchronous
async def test_a_defect_of_a_tool_is_a_failure_of_its_task_and_prints_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tool = Odd()
    tool.outcome = KeyError(f"Authorization: Bearer {CANARY}")
    with caplog.at_level(logging.ERROR):
        result = await caller(tool).run("odd", call("api"))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code) == ("unknown", "internal")
    assert "Bearer ***" in result.failure.message
    assert "Traceback" in caplog.text
    assert CANARY not in caplog.text + result.failure.message


@asynchronous
async def test_what_is_no_defect_of_the_tool_is_left_alone() -> None:
    tool = Odd()
    tool.outcome = LeaseLost("gone")
    with pytest.raises(LeaseLost):
        await caller(tool).run("odd", call("api"))
    tool.outcome = ToolFailed(Failure(kind="timeout", message=f"late {CANARY}"), data=[CANARY])
    result = await caller(tool).run("odd", call("api"))
    assert (result.value, result.failure and result.failure.message) == (["***"], "late ***")


@asynchronous
async def test_a_variable_is_given_only_when_the_worker_allows_it() -> None:
    tool = Odd()
    tool.outcome = ToolResult(value=CANARY)
    allowed = caller(tool, {"API_TOKEN": CANARY})
    assert (await allowed.run("odd", call({"source": "env", "name": "API_TOKEN", "type": "bearer"}))).value == "***"
    failure = (await allowed.run("odd", call({"source": "env", "name": "HOME"}))).failure
    assert failure is not None
    assert (failure.kind, failure.code) == ("auth", "AUTH_ENV")


def test_the_list_of_variables_is_a_setting_and_hides_their_values() -> None:
    source = {"NOETL_AUTH_ENV_ALLOW": "ONE, TWO,EMPTY", "ONE": CANARY, "EMPTY": "", "OTHER": "x"}
    settings = read_settings(source)
    assert {name: value.reveal() for name, value in settings.auth_environment.items()} == {"ONE": CANARY}
    assert CANARY not in f"{settings} {settings.auth_environment}"
    assert read_settings({}).auth_environment == {}


@pytest.mark.parametrize(
    ("fields", "script", "field"),
    [
        ({"sql": f"select '{CANARY}'"}, None, "sql"),
        ({"sql": "select 1", "outputs": {"a": {"query": f"select '{CANARY}'"}}}, None, "outputs"),
        ({"sql": "select 1", "expect": [{"sql": f"x <> '{CANARY}'"}]}, None, "expect"),
        ({"sql": "select 1", "conf": {"spark.x": CANARY}}, None, "conf"),
        ({"application": "a.py", "arguments": [CANARY]}, None, "arguments"),
        ({}, Script(name="a.sql", text=f"select '{CANARY}'"), "script"),
    ],
)
@asynchronous
async def test_no_text_that_spark_would_keep_has_a_secret_in_it(
    fields: dict[str, object], script: Script | None, field: str
) -> None:
    tool = Odd()
    tool.kind = "spark"
    result = await caller(tool).run("spark", replace(call("api"), fields={**fields, "auth": "api"}, script=script))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code) == ("config", "SPARK_SECRET")
    assert result.failure.message.startswith(f"{field} holds a secret")
    assert CANARY not in str(result)
    assert tool.calls == []


@asynchronous
async def test_other_texts_of_spark_pass() -> None:
    tool = Odd()
    tool.kind = "spark"
    fields = {"sql": "select 1", "auth": "api"}
    assert (await caller(tool).run("spark", replace(call("api"), fields=fields))).failure is None
    assert len(tool.calls) == 1
