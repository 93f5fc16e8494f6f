"""Sealing and opening, and the key in its file."""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from noetl.adapters.crypto.aes import AesGcmCipher
from noetl.adapters.crypto.keys import file_key, given_key, home_key, no_key
from noetl.core.errors import CredentialUnreadable, SettingsInvalid
from noetl.core.secret import Secret, key_to_text
from noetl.ports.secrets import Credential, SealedCredential
from noetl.settings import read_settings
from noetl.wiring.credentials import credential_cipher
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
KEY, OTHER_KEY = Secret(bytes(range(32))), Secret(bytes(range(1, 33)))
CANARY = "canary-Zq8fX2"
DATA: Mapping[str, object] = {"password": CANARY, "port": 5432, "nested": {"ü": [1.5, None, True]}}


def cipher(key: Secret[bytes] = KEY) -> AesGcmCipher:
    return AesGcmCipher(given_key(key))


async def sealed(data: Mapping[str, object] = DATA) -> SealedCredential:
    credential = Credential(name="pg", type="postgres", data=Secret(data))
    return await cipher().seal(credential, **OWNER)


@asynchronous
async def test_what_was_sealed_opens_with_the_same_key() -> None:
    opened = await cipher().open(await sealed())
    assert (opened.name, opened.type, opened.data.reveal()) == ("pg", "postgres", DATA)


@asynchronous
async def test_nothing_of_the_value_can_be_read_and_every_sealing_differs() -> None:
    one, two = await sealed(), await sealed()
    assert CANARY.encode() not in one.ciphertext
    assert one.nonce != two.nonce
    assert one.ciphertext != two.ciphertext
    assert len(one.nonce) == 12


@asynchronous
async def test_the_id_of_the_key_is_the_start_of_its_digest() -> None:
    # SHA-256 of the bytes 0 to 31.
    assert (await sealed()).key_id == "630dcd2966c43366"


@asynchronous
async def test_another_key_is_named_as_the_reason() -> None:
    with pytest.raises(CredentialUnreadable, match=r"sealed with the key 630dcd2966c43366.*this process has the key"):
        await cipher(OTHER_KEY).open(await sealed())


@asynchronous
async def test_another_key_does_not_open_it_even_when_the_row_claims_so() -> None:
    claimed = (await cipher(OTHER_KEY).seal(Credential(name="x", type="y", data=Secret({})), **OWNER)).key_id
    with pytest.raises(CredentialUnreadable, match="does not decrypt"):
        await cipher(OTHER_KEY).open(replace(await sealed(), key_id=claimed))


@pytest.mark.parametrize("change", ["name", "type", "tenant_id", "organization_id"])
@asynchronous
async def test_a_row_that_was_moved_or_renamed_does_not_open(change: str) -> None:
    row = await sealed()
    with pytest.raises(CredentialUnreadable, match="changed or moved"):
        await cipher().open(replace(row, **{change: "other"}))  # type: ignore[arg-type]


@asynchronous
async def test_owner_and_name_cannot_be_shifted_into_each_other() -> None:
    one = await cipher().seal(
        Credential(name="c", type="t", data=Secret(DATA)), tenant_id="a", organization_id='b","name":"c'
    )
    with pytest.raises(CredentialUnreadable):
        await cipher().open(replace(one, organization_id="b"))


@asynchronous
async def test_swapped_values_of_two_rows_do_not_open() -> None:
    one = await sealed()
    two = await cipher().seal(Credential(name="other", type="postgres", data=Secret({"x": 1})), **OWNER)
    with pytest.raises(CredentialUnreadable):
        await cipher().open(replace(one, nonce=two.nonce, ciphertext=two.ciphertext))


@pytest.mark.parametrize("place", [0, 7, -1])
@asynchronous
async def test_a_changed_bit_does_not_open(place: int) -> None:
    row = await sealed()
    for name in ("ciphertext", "nonce"):
        content = bytearray(getattr(row, name))
        content[place] ^= 1
        with pytest.raises(CredentialUnreadable):
            await cipher().open(replace(row, **{name: bytes(content)}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("nonce", "ciphertext"), [(b"", b"x" * 40), (b"n" * 12, b""), (b"n" * 200, b"x" * 40)])
@asynchronous
async def test_a_broken_row_is_unreadable_and_no_surprise(nonce: bytes, ciphertext: bytes) -> None:
    with pytest.raises(CredentialUnreadable):
        await cipher().open(replace(await sealed(), nonce=nonce, ciphertext=ciphertext))


@asynchronous
async def test_no_message_holds_a_key_or_a_value() -> None:
    row = await sealed()
    for bad in (cipher(OTHER_KEY).open(row), cipher().open(replace(row, name="other"))):
        with pytest.raises(CredentialUnreadable) as caught:
            await bad
        text = "".join(traceback.format_exception(caught.value))
        assert CANARY not in text
        assert key_to_text(KEY) not in text


# --- keys ------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_process_without_a_key_says_what_to_set() -> None:
    for attempt in (
        AesGcmCipher(no_key).open(await sealed()),
        AesGcmCipher(no_key).seal(Credential(name="pg", type="postgres", data=Secret(DATA)), **OWNER),
    ):
        with pytest.raises(SettingsInvalid, match="NOETL_CREDENTIAL_KEY_FILE or NOETL_CREDENTIAL_KEY"):
            await attempt


def test_a_home_makes_its_key_once_and_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "credential.key"
    previous = os.umask(0)
    try:
        first = home_key(path)()
    finally:
        os.umask(previous)
    assert len(first.reveal()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert home_key(path)().reveal() == first.reveal()
    assert [one.name for one in tmp_path.iterdir()] == ["credential.key"]


def test_several_that_make_the_key_at_once_get_the_same(tmp_path: Path) -> None:
    path = tmp_path / "credential.key"
    with ThreadPoolExecutor(16) as pool:
        keys = {key.reveal() for key in pool.map(lambda _: home_key(path)(), range(64))}
    assert keys == {home_key(path)().reveal()}
    assert [one.name for one in tmp_path.iterdir()] == ["credential.key"]


def test_a_key_that_others_may_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "credential.key"
    home_key(path)()
    path.chmod(0o640)
    with pytest.raises(SettingsInvalid, match="chmod 600"):
        home_key(path)()


def test_a_damaged_key_is_refused_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "credential.key"
    path.touch(mode=0o600)
    with pytest.raises(SettingsInvalid, match="must hold the base64 of 32"):
        home_key(path)()
    assert path.read_bytes() == b""


def test_a_home_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"cannot make the key .*No such file"):
        home_key(tmp_path / "missing" / "credential.key")()


def test_a_key_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    path.write_text(key_to_text(KEY))
    path.chmod(0o644)  # a mounted secret often is
    assert file_key(path)().reveal() == KEY.reveal()


@pytest.mark.parametrize("content", [b"", b"too short", b"\xff\xfe" * 20])
def test_a_key_file_with_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.key"
    path.write_bytes(content)
    with pytest.raises(SettingsInvalid, match=r"NOETL_CREDENTIAL_KEY_FILE: .*must hold"):
        file_key(path)()


def test_a_key_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"NOETL_CREDENTIAL_KEY_FILE: cannot read .*absent\.key"):
        file_key(tmp_path / "absent.key")()


@asynchronous
async def test_what_was_set_comes_before_the_key_of_the_home(tmp_path: Path) -> None:
    file = tmp_path / "other.key"
    file.write_text(key_to_text(OTHER_KEY))
    home = {"NOETL_HOME": str(tmp_path)}
    credential = Credential(name="pg", type="postgres", data=Secret(DATA))

    async def key_id(environment: dict[str, str], *, is_embedded: bool = True) -> str:
        made = credential_cipher(read_settings(home | environment), is_embedded=is_embedded)
        return (await made.seal(credential, **OWNER)).key_id

    given = await key_id({"NOETL_CREDENTIAL_KEY": key_to_text(KEY)})
    from_file = await key_id({"NOETL_CREDENTIAL_KEY_FILE": str(file)})
    assert not (tmp_path / "credential.key").exists()
    own = await key_id({})
    assert len({given, from_file, own}) == 3
    assert given == "630dcd2966c43366"
    assert (tmp_path / "credential.key").exists()
    with pytest.raises(SettingsInvalid):
        await key_id({}, is_embedded=False)
