"""A secret cannot be shown by accident; keys are read without being quoted."""

from __future__ import annotations

import copy
import io
import json
import logging
import traceback
from dataclasses import asdict

import pytest

from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, SettingsInvalid
from noetl.core.secret import Secret, key_from_text, key_to_text
from noetl.ports.secrets import Credential
from noetl.settings import read_settings

CANARY = "canary-Zq8fX2"
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@pytest.mark.parametrize(
    "shown",
    [
        str,
        repr,
        lambda secret: f"{secret}",
        lambda secret: f"{secret!r:>40}",
        "{0:s} {0}".format,
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031 - what a log line does
        lambda secret: str([secret, {"x": secret}]),
        lambda secret: repr(Credential(name="pg", type="postgres", data=Secret({"password": secret}))),
        lambda secret: str(vars(type(secret))),
    ],
)
def test_a_secret_has_no_text(shown: object) -> None:
    text = shown(Secret(CANARY))  # type: ignore[operator]
    assert CANARY not in text


@pytest.mark.parametrize(
    "serialise",
    [json.dumps, canonical_bytes, copy.copy, copy.deepcopy, lambda secret: secret.__reduce_ex__(2)],
)
def test_a_secret_is_not_serialised(serialise: object) -> None:
    with pytest.raises((TypeError, EnvelopeInvalid)) as caught:
        serialise(Secret(CANARY))  # type: ignore[operator]
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_credential_is_not_turned_into_plain_data() -> None:
    with pytest.raises(TypeError):
        asdict(Credential(name="pg", type="postgres", data=Secret({"password": CANARY})))


def test_a_secret_does_not_reach_a_log() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s %(extra_one)s"))
    log = logging.Logger("test_secret")
    log.addHandler(handler)
    log.warning("one %s, two %r", Secret(CANARY), {"x": Secret(CANARY)}, extra={"extra_one": Secret(CANARY)})
    assert stream.getvalue() == "one ***, two {'x': Secret(***)} ***\n"


def test_secrets_are_not_compared_and_have_no_hash() -> None:
    with pytest.raises(TypeError, match="compare_digest"):
        assert Secret(CANARY) == Secret(CANARY)
    with pytest.raises(TypeError):
        hash(Secret(CANARY))


def test_only_reveal_gives_the_value_back() -> None:
    assert Secret(CANARY).reveal() == CANARY


# --- keys ------------------------------------------------------------------------------------------------


def test_a_key_is_read_from_its_text_and_written_back() -> None:
    key = key_from_text(f"  {KEY}\n")
    assert key.reveal() == bytes(range(32))
    assert key_to_text(key) == KEY


WRONG_KEYS = ["short", KEY[:-4], KEY[:-1], KEY + "AAAA", KEY.replace("A", "*"), "ключ" * 8]


@pytest.mark.parametrize("text", WRONG_KEYS)
def test_a_wrong_key_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"NOETL_CREDENTIAL_KEY must be the base64 of 32 random bytes") as caught:
        read_settings({"NOETL_CREDENTIAL_KEY": text})
    assert text not in "".join(traceback.format_exception(caught.value))


def test_the_settings_hold_the_key_and_do_not_show_it() -> None:
    settings = read_settings({"NOETL_CREDENTIAL_KEY": KEY})
    assert settings.credential_key is not None
    assert settings.credential_key.reveal() == bytes(range(32))
    assert KEY not in repr(settings)
    assert settings == read_settings({"NOETL_CREDENTIAL_KEY": KEY})


def test_without_a_key_the_settings_have_none() -> None:
    settings = read_settings({"NOETL_CREDENTIAL_KEY": ""})
    assert settings.credential_key is None
    assert settings.credential_key_file is None


def test_two_keys_are_refused() -> None:
    with pytest.raises(SettingsInvalid, match="not both"):
        read_settings({"NOETL_CREDENTIAL_KEY": KEY, "NOETL_CREDENTIAL_KEY_FILE": "key"})


def test_a_key_file_is_a_path() -> None:
    settings = read_settings({"NOETL_CREDENTIAL_KEY_FILE": "~/some.key"})
    assert settings.credential_key_file is not None
    assert settings.credential_key_file.is_absolute()
