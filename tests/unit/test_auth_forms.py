"""The forms of `auth` (dsl §10.1)."""

from __future__ import annotations

import pytest

from noetl.core.errors import Failure, ToolFailed
from noetl.core.secret import Secret
from noetl.engine.work.calling.auth import Auth, resolve_auth
from noetl.ports.secrets import Credential
from tests.support.aio import asynchronous

CANARY = "canary-Zq8fX2"


class Known:
    """Sources with a keychain entry, two stored credentials and one variable."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def named(self, name: str) -> Credential:
        self.asked.append(("named", name))
        if name == "entry":
            return Credential(name=name, type="oauth2", data=Secret({"token": CANARY}))
        return await self.stored(name)

    async def stored(self, name: str) -> Credential:
        self.asked.append(("stored", name))
        if name not in ("pg", "api"):
            raise ToolFailed(
                Failure(kind="auth", code="CREDENTIAL_UNKNOWN", message=f"there is no credential {name!r}")
            )
        return Credential(name=name, type="postgres", data=Secret({"host": "db", "password": CANARY}))

    def variable(self, name: str) -> Credential:
        self.asked.append(("variable", name))
        return Credential(name=name, type="secret", data=Secret({"value": CANARY}))


async def resolved(auth: object) -> Auth:
    return await resolve_auth(auth, Known())


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
async def test_a_text_is_the_name_of_an_entry_or_a_credential() -> None:
    source = Known()
    found = await resolve_auth(" pg ", source)
    assert isinstance(found, Credential)
    assert source.asked == [("named", "pg"), ("stored", "pg")]
    assert await one("entry") == ("entry", "oauth2", {"token": CANARY})
    assert (await one({"key": "entry", "type": "bearer"}))[:2] == ("entry", "bearer")


@asynchronous
async def test_a_secret_is_a_stored_credential_and_never_an_entry() -> None:
    assert (await one({"source": "secret", "name": "api"}))[0] == "api"
    assert (await one({"source": "secret", "secret_name": "api"}))[0] == "api"
    assert (await refused({"source": "secret", "name": "entry"})).code == "CREDENTIAL_UNKNOWN"


@asynchronous
async def test_a_variable_of_the_worker_is_a_secret_of_one_value() -> None:
    assert await one({"source": "env", "name": "API_TOKEN"}) == ("API_TOKEN", "secret", {"value": CANARY})
    assert (await one({"source": "env", "name": "API_TOKEN", "type": "bearer"}))[1] == "bearer"
    assert (await refused({"source": "env"})).kind == "config"


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
    original = await Known().stored("pg")
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


@asynchronous
async def test_the_credentials_of_a_cloud_are_unsupported_and_it_says_what_to_do() -> None:
    failure = await refused({"source": "adc", "name": "TOKEN"})
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
