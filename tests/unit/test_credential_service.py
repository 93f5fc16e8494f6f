"""Setting, showing and opening credentials, over the memory adapters."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

import pytest

from noetl.adapters.crypto.aes import AesGcmCipher
from noetl.adapters.crypto.keys import given_key, no_key
from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.credentials import MemoryCredentials
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.core.errors import CredentialUnknown, Failure, RequestInvalid, SettingsInvalid, ToolFailed
from noetl.core.secret import Secret
from noetl.engine.credentials import CREDENTIAL_TYPES, CredentialOpener, CredentialService
from noetl.ports.secrets import Credential, SealedCredential
from tests.support.aio import asynchronous

CANARY = "canary-Zq8fX2"
DATA = {"password": CANARY}


@dataclass(frozen=True)
class Someone:
    tenant_id: str = "acme"
    organization_id: str = "sales"


ME = Someone()
OWNER = {"tenant_id": "acme", "organization_id": "sales"}


class World:
    """One store with a service in front and a worker behind, each with a key of its own."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.faults = Faults()
        self.store = MemoryCredentials(self.clock, self.faults)
        self.cipher = AesGcmCipher(given_key(Secret(bytes(32))))
        self.service = CredentialService(self.store, self.cipher, reserved=["noetl_data"])
        built_in = Credential(name="noetl_data", type="postgres", data=Secret({"host": "here"}))
        self.opener = CredentialOpener(self.store, self.cipher, clock=self.clock, built_in={"noetl_data": built_in})

    async def put(self, name: str = "pg", **changes: object) -> object:
        given: dict[str, object] = {"type": "postgres", "data": DATA, "owner": ME, **changes}
        return await self.service.put(name, **given)  # type: ignore[arg-type]

    async def refused(self, name: str = "pg", opener: CredentialOpener | None = None) -> Failure:
        with pytest.raises(ToolFailed) as caught:
            await (opener or self.opener).open(name, **OWNER)
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        return caught.value.failure


# --- setting and showing ---------------------------------------------------------------------------------


@asynchronous
async def test_what_was_set_is_described_without_its_values() -> None:
    world = World()
    shown = await world.put(description="The orders.\nAll of them.", tags=["prod", "eu"])
    assert shown == await world.service.describe("pg", owner=ME)
    assert [shown] == await world.service.list(owner=ME)
    assert CANARY not in repr(shown)
    view = await world.service.describe("pg", owner=ME)
    assert (view.name, view.type, view.description, view.tags) == (
        "pg",
        "postgres",
        "The orders.\nAll of them.",
        ("prod", "eu"),
    )
    assert view.updated_at == world.clock.now()


@asynchronous
async def test_what_lies_in_the_store_cannot_be_read() -> None:
    world = World()
    await world.put()
    sealed = await world.store.find("pg", **OWNER)
    assert sealed is not None
    assert CANARY not in repr(sealed)


@asynchronous
async def test_an_unknown_credential_is_neither_described_nor_deleted() -> None:
    world = World()
    await world.put()
    for name, owner in (("other", ME), ("pg", Someone("other")), ("pg", Someone(organization_id="x")), ("\x00", ME)):
        with pytest.raises(CredentialUnknown):
            await world.service.describe(name, owner=owner)
        with pytest.raises(CredentialUnknown):
            await world.service.delete(name, owner=owner)
    await world.service.delete("pg", owner=ME)
    assert await world.service.list(owner=ME) == []


@pytest.mark.parametrize("type_", CREDENTIAL_TYPES)
@asynchronous
async def test_every_type_of_the_language_is_taken(type_: str) -> None:
    world = World()
    await world.put(type=type_)
    assert (await world.opener.open("pg", **OWNER)).type == type_


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {"x": CANARY}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("", {}, "1 to 200 printable"),
        ("x" * 201, {}, "1 to 200 printable"),
        ("a\nb", {}, "1 to 200 printable"),
        ("a\x00", {}, "1 to 200 printable"),
        ("\ud800", {}, "1 to 200 printable"),
        ("pg", {"type": "postgresql"}, "unknown credential type 'postgresql': use one of api_key, auth0,"),
        ("pg", {"type": ""}, "unknown credential type ''"),
        ("pg", {"data": [CANARY]}, "must be a JSON object"),
        ("pg", {"data": CANARY}, "must be a JSON object"),
        ("pg", {"data": {1: CANARY}}, "must be a JSON object"),
        ("pg", {"data": {"x": CANARY, "y": float("nan")}}, "not JSON"),
        ("pg", {"data": {"x": CANARY, "y": b"bytes"}}, "not JSON"),
        ("pg", {"data": {"x": CANARY, "y": "\ud800"}}, "not JSON"),
        ("pg", {"data": nested(100_000)}, "not JSON"),
        ("pg", {"data": {"x": CANARY + "x" * 65_530}}, "the limit is 65,536"),
        ("pg", {"data": {"x": [CANARY] * 257}}, "257 values, the limit is 256"),
        ("pg", {"description": "x" * 2001}, "2,000 characters"),
        ("pg", {"description": "a\x00b"}, "description must be text"),
        ("pg", {"tags": ["x"] * 51}, "at most 50"),
        ("pg", {"tags": ["x" * 101]}, "1 to 100 printable"),
        ("pg", {"tags": [""]}, "1 to 100 printable"),
        ("pg", {"tags": ["a\nb"]}, "1 to 100 printable"),
        ("noetl_data", {}, "built in"),
    ],
)
@asynchronous
async def test_what_cannot_be_stored_is_refused_without_quoting_it(
    name: str, changes: dict[str, object], message: str
) -> None:
    world = World()
    with pytest.raises(RequestInvalid, match=message) as caught:
        await world.put(name, **changes)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert await world.service.list(owner=ME) == []


@asynchronous
async def test_data_up_to_the_limit_is_taken() -> None:
    world = World()
    data = {"x": "y" * (65_536 - len('{"x":""}'))}
    await world.put(data=data)
    assert (await world.opener.open("pg", **OWNER)).data.reveal() == data


@asynchronous
async def test_without_a_key_credentials_can_be_listed_and_deleted_but_not_set() -> None:
    world = World()
    await world.put()
    service = CredentialService(world.store, AesGcmCipher(no_key))
    with pytest.raises(SettingsInvalid, match="NOETL_CREDENTIAL_KEY"):
        await service.put("pg", type="postgres", data=DATA, owner=ME)
    assert len(await service.list(owner=ME)) == 1
    await service.delete("pg", owner=ME)


# --- opening ---------------------------------------------------------------------------------------------


@asynchronous
async def test_a_worker_opens_what_was_set() -> None:
    world = World()
    await world.put()
    opened = await world.opener.open("pg", **OWNER)
    assert (opened.name, opened.type, opened.data.reveal()) == ("pg", "postgres", DATA)
    assert CANARY not in repr(opened)


@asynchronous
async def test_an_unknown_credential_fails_the_task_and_the_message_names_it() -> None:
    world = World()
    failure = await world.refused("nobody")
    assert (failure.kind, failure.code, failure.retryable) == ("auth", "CREDENTIAL_UNKNOWN", False)
    assert "'nobody'" in failure.message
    assert (await world.refused("a\x00b")).code == "CREDENTIAL_UNKNOWN"
    assert (await world.refused("")).code == "CREDENTIAL_UNKNOWN"


@asynchronous
async def test_a_credential_of_another_owner_is_unknown() -> None:
    world = World()
    await world.put(owner=Someone("other"))
    assert (await world.refused()).code == "CREDENTIAL_UNKNOWN"


@asynchronous
async def test_a_built_in_credential_needs_no_store() -> None:
    world = World()
    assert (await world.opener.open("noetl_data", **OWNER)).data.reveal() == {"host": "here"}


@asynchronous
async def test_a_worker_with_another_key_says_so() -> None:
    world = World()
    await world.put()
    other = CredentialOpener(world.store, AesGcmCipher(given_key(Secret(bytes([1]) * 32))), clock=world.clock)
    failure = await world.refused(opener=other)
    assert (failure.kind, failure.code) == ("auth", "CREDENTIAL_UNREADABLE")
    keyless = CredentialOpener(world.store, AesGcmCipher(no_key), clock=world.clock)
    failure = await world.refused(opener=keyless)
    assert (failure.kind, failure.code) == ("auth", "CREDENTIAL_KEY")
    assert "NOETL_CREDENTIAL_KEY_FILE" in failure.message


@asynchronous
async def test_a_store_that_answers_with_another_credential_is_not_believed() -> None:
    world = World()
    await world.put("root", owner=Someone("other"))
    stolen = await world.store.find("root", tenant_id="other", organization_id="sales")
    assert stolen is not None

    class Lying:
        async def find(self, _name: str, **_owner: str) -> SealedCredential | None:
            return stolen

    failure = await world.refused(opener=CredentialOpener(Lying(), world.cipher, clock=world.clock))  # type: ignore[arg-type]
    assert failure.code == "CREDENTIAL_UNREADABLE"


@asynchronous
async def test_a_store_that_is_away_makes_a_failure_that_can_be_retried() -> None:
    world = World()
    await world.put()
    world.faults.script("credential", Mishap(outcome=Outcome.NOT_DONE))
    failure = await world.refused()
    assert (failure.kind, failure.retryable) == ("connection", True)
    assert (await world.opener.open("pg", **OWNER)).name == "pg"


@asynchronous
async def test_an_opened_credential_is_remembered_for_a_moment_only() -> None:
    world = World()
    await world.put()
    first = await world.opener.open("pg", **OWNER)
    await world.put(data={"password": "changed"})
    world.clock.advance(4.9)
    assert await world.opener.open("pg", **OWNER) is first
    world.clock.advance(0.2)
    assert (await world.opener.open("pg", **OWNER)).data.reveal() == {"password": "changed"}
    await world.service.delete("pg", owner=ME)
    world.clock.advance(5.1)
    assert (await world.refused()).code == "CREDENTIAL_UNKNOWN"


@asynchronous
async def test_being_used_does_not_prolong_the_moment() -> None:
    world = World()
    await world.put()
    first = await world.opener.open("pg", **OWNER)
    for _ in range(4):
        world.clock.advance(1.2)
        assert await world.opener.open("pg", **OWNER) is first
    world.clock.advance(1.2)
    assert await world.opener.open("pg", **OWNER) is not first


@asynchronous
async def test_what_is_unknown_is_not_remembered() -> None:
    world = World()
    await world.refused()
    await world.put()
    assert (await world.opener.open("pg", **OWNER)).name == "pg"


@asynchronous
async def test_remembered_credentials_belong_to_their_owner() -> None:
    world = World()
    await world.put()
    await world.put(owner=Someone("other"), data={"password": "theirs"})
    mine = await world.opener.open("pg", **OWNER)
    theirs = await world.opener.open("pg", tenant_id="other", organization_id="sales")
    assert (mine.data.reveal(), theirs.data.reveal()) == (DATA, {"password": "theirs"})
    with pytest.raises(ToolFailed):
        await world.opener.open("pg", tenant_id="third", organization_id="sales")


@asynchronous
async def test_the_number_of_remembered_credentials_is_bounded() -> None:
    world = World()
    await world.put()
    sealed = await world.store.find("pg", **OWNER)
    assert sealed is not None
    for number in range(1_001):
        name = f"pg{number}"
        row = await world.cipher.seal(Credential(name=name, type="postgres", data=Secret(DATA)), **OWNER)
        await world.store.put(replace(row))
        await world.opener.open(name, **OWNER)
    assert len(world.opener._cache) == 1_000
    assert ("acme", "sales", "pg0") not in world.opener._cache
