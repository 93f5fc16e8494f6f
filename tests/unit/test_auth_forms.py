"""The forms of `auth` (dsl §10.1)."""

from __future__ import annotations

import pytest

from noetl.core.errors import Failure, ToolFailed
from noetl.core.secret import Secret
from noetl.engine.work.calling.auth import Auth, resolve_auth
from noetl.ports.secrets import Credential
from tests.support.aio import asynchronous

CANARY = "canary-Zq8fX2"
OWNER = {"tenant_id": "acme", "organization_id": "sales"}


class Known:
    """A source with two credentials of one owner."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def open(self, name: str, *, tenant_id: str, organization_id: str) -> Credential:
        self.asked.append((tenant_id, organization_id, name))
        if name not in ("pg", "api"):
            raise ToolFailed(
                Failure(kind="auth", code="CREDENTIAL_UNKNOWN", message=f"there is no credential {name!r}")
            )
        return Credential(name=name, type="postgres", data=Secret({"host": "db", "password": CANARY}))


async def resolved(auth: object) -> Auth:
    return await resolve_auth(auth, Known(), **OWNER)


async def one(auth: object) -> tuple[str, str, object]:
    found = await resolved(auth)
    assert isinstance(found, Credential)
    return found.name, found.type, found.data.reveal()


async def refused(auth: object) -> Failure:
    with pytest.raises(ToolFailed) as caught:
        await resolved(auth)
    assert CANARY not in str(caught.value)
    return caught.value.failure


@asynchronous
async def test_no_auth_is_none() -> None:
    assert await resolved(None) is None


@asynchronous
async def test_a_text_is_the_name_of_a_credential_of_this_owner() -> None:
    source = Known()
    found = await resolve_auth(" pg ", source, **OWNER)
    assert isinstance(found, Credential)
    assert source.asked == [("acme", "sales", "pg")]


@pytest.mark.parametrize(
    "auth",
    [
        {"key": "pg"},
        {"credential": "pg"},
        {"name": "pg"},
        {"source": "credential", "key": "pg"},
        {"source": None, "key": "pg", "scope": "global", "inject": True},
        {"key": "pg", "credential": "api"},
        {"type": "postgres", "key": "pg"},
        {"key": "pg", "fields": {}},
    ],
)
@asynchronous
async def test_one_object_names_a_credential(auth: dict[str, object]) -> None:
    assert await one(auth) == ("pg", "postgres", {"host": "db", "password": CANARY})


@pytest.mark.parametrize(
    ("auth", "type_"),
    [
        ({"key": "pg", "type": "bearer"}, "bearer"),
        ({"key": "pg", "service": "gcs"}, "gcs"),
        ({"key": "pg", "tool": "duckdb"}, "duckdb"),
        ({"key": "pg", "tool": "duckdb", "service": "gcs", "type": "bearer"}, "bearer"),
    ],
)
@asynchronous
async def test_the_type_can_be_overridden(auth: dict[str, object], type_: str) -> None:
    assert (await one(auth))[1] == type_


@asynchronous
async def test_fields_are_laid_over_the_credential_and_leave_it_as_it_was() -> None:
    source = Known()
    original = await source.open("pg", **OWNER)
    found = await one({"key": "pg", "fields": {"host": "other", "port": 1}})
    assert found == ("pg", "postgres", {"host": "other", "port": 1, "password": CANARY})
    assert original.data.reveal() == {"host": "db", "password": CANARY}


@asynchronous
async def test_an_inline_credential_is_what_its_fields_say() -> None:
    auth = {"source": "inline", "type": "bearer", "fields": {"token": CANARY}}
    assert await one(auth) == ("inline", "bearer", {"token": CANARY})
    assert (await one({"source": "inline", "fields": {"x": 1}}))[1] == "generic"
    assert (await refused({"source": "inline", "type": "bearer"})).kind == "config"


@asynchronous
async def test_any_other_mapping_is_by_alias() -> None:
    found = await resolved({"db": {"key": "pg"}, "web": {"source": "inline", "fields": {"a": 1}}, "short": "api"})
    assert isinstance(found, dict)
    assert {alias: credential.name for alias, credential in found.items()} == {
        "db": "pg",
        "web": "inline",
        "short": "api",
    }


@asynchronous
async def test_an_unknown_credential_is_named_and_nothing_else() -> None:
    for auth in ("nobody", {"key": "nobody"}, {"db": {"key": "nobody"}}):
        failure = await refused(auth)
        assert (failure.kind, failure.code, failure.retryable) == ("auth", "CREDENTIAL_UNKNOWN", False)


@pytest.mark.parametrize("source", ["env", "secret", "adc"])
@asynchronous
async def test_a_source_that_is_not_there_is_unsupported_and_says_what_to_do(source: str) -> None:
    failure = await refused({"source": source, "name": "TOKEN"})
    assert failure.kind == "unsupported"
    assert "noetl credential set" in failure.message


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ("", "names no credential"),
        ("  ", "names no credential"),
        ({"type": "postgres"}, "names no credential"),
        ({"key": 7}, "names no credential"),
        ({"source": "vault", "key": CANARY}, "unknown source"),
        ({"source": ["x"], "key": CANARY}, "unknown source"),
        ({"key": "pg", "fields": [CANARY]}, r"auth\.fields must be a mapping"),
        ({"key": "pg", "type": [CANARY]}, r"auth\.type must be text"),
        ({"db": 7}, r"auth\.db must be the name of a credential or a mapping, not int"),
        ([CANARY], "not list"),
        (True, "not bool"),
        ({}, "0 aliases"),
        ({str(number): "pg" for number in range(101)}, "101 aliases"),
    ],
)
@asynchronous
async def test_a_wrong_form_is_a_failure_of_the_playbook(auth: object, message: str) -> None:
    failure = await refused(auth)
    assert failure.kind == "config"
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(failure.message)
