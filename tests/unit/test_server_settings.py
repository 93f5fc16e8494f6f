"""Settings and tokens of servers and workers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from noetl.core.errors import SettingsInvalid
from noetl.core.limits import ENV_BYTES_MAX, ENV_NAMES_MAX
from noetl.processes.server.auth import Tokens
from noetl.processes.server.tokens import grants_of, read_token_file, serving_tokens, token_path
from noetl.settings import Settings, read_settings, server_url, server_urls

GOOD = "0123456789abcdef"
OTHER = "fedcba9876543210"


def settings(home: Path, **extra: str) -> Settings:
    return read_settings({"NOETL_HOME": str(home), **extra})


def test_the_defaults_are_those_of_the_documents(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert (found.host, found.port) == ("127.0.0.1", 8082)
    assert found.session_lease_seconds == 3.0
    assert found.server_url is None
    assert not found.is_owner_named
    assert settings(tmp_path, NOETL_TENANT_ID="acme").is_owner_named


def test_places_are_as_much_as_is_said(tmp_path: Path) -> None:
    assert settings(tmp_path).place == {}
    assert settings(tmp_path).control.locality_preference == "any"
    found = settings(
        tmp_path, NOETL_ZONE="a", NOETL_CLUSTER_ID="prod", NOETL_REGION="", NOETL_LOCALITY_PREFERENCE="zone"
    )
    assert found.place == {"zone": "a", "cluster": "prod"}
    assert found.control.locality_preference == "zone"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOETL_LOCALITY_PREFERENCE", "planet"),
        ("NOETL_LOCALITY_PREFERENCE", "worker"),
        ("NOETL_ZONE", "a\nb"),
        ("NOETL_NODE_ID", "n" * 101),
        ("NOETL_PORT", "65536"),
        ("NOETL_PORT", "http"),
        ("NOETL_TOKEN", "short"),
        ("NOETL_TOKEN", "with a space in it, and long"),
        ("NOETL_WORKER_TOKEN", "ü" * 20),
        ("NOETL_SESSION_LEASE_SECONDS", "0"),
        ("NOETL_SESSION_LEASE_SECONDS", "soon"),
        ("NOETL_SESSION_LEASE_SECONDS", "nan"),
        ("NOETL_WORKER_GRACE_SECONDS", "-1"),
        ("NOETL_SERVER_URL", "127.0.0.1:8082"),
        ("NOETL_SERVER_URL", "http://somebody:secret@x"),
        ("NOETL_SERVER_URL", "http://x:99999"),
        ("NOETL_WORKER_POOL", "\n"),
        ("NOETL_ENV_ALLOW", "HOME;PATH"),
        ("NOETL_ENV_ALLOW", "NOETL_TOKEN"),
        ("NOETL_ENV_ALLOW", ",".join(f"V{n}" for n in range(ENV_NAMES_MAX + 1))),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_variable(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        settings(tmp_path, **{name: value})
    assert name in str(caught.value)
    assert "secret" not in str(caught.value)


def test_playbooks_see_no_variables_but_those_that_are_allowed(tmp_path: Path) -> None:
    assert settings(tmp_path, HOME="x").env == {}
    allowed = settings(tmp_path, NOETL_ENV_ALLOW="REGION, EMPTY,ABSENT,", REGION="eu", EMPTY="", OTHER="x")
    assert allowed.env == {"REGION": "eu", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "says"),
    [("x" * ENV_BYTES_MAX, "recorded with every execution"), ("\udcff secret", "whose value is no text")],
)
def test_variables_that_cannot_be_recorded_are_refused(tmp_path: Path, value: str, says: str) -> None:
    with pytest.raises(SettingsInvalid, match=says) as caught:
        settings(tmp_path, NOETL_ENV_ALLOW="REGION", REGION=value)
    assert "secret" not in str(caught.value)


def test_a_variable_that_is_a_credential_is_not_recorded(tmp_path: Path) -> None:
    both = {"NOETL_ENV_ALLOW": "KEY", "NOETL_AUTH_ENV_ALLOW": "KEY", "KEY": "secret"}
    with pytest.raises(SettingsInvalid, match="NOETL_AUTH_ENV_ALLOW makes a credential"):
        settings(tmp_path, **both)


def test_an_address_is_reduced_to_what_it_is() -> None:
    assert server_url("http://x:1/", "n") == "http://x:1"
    assert server_url("https://[::1]:8082", "n") == "https://[::1]:8082"
    assert server_url(None, "n") is None


def test_tokens_are_made_once_and_kept_for_the_next_start(tmp_path: Path) -> None:
    pair = serving_tokens(settings(tmp_path))
    assert pair.token != pair.worker_token
    assert pair.token not in repr(pair)
    assert token_path(tmp_path).stat().st_mode & 0o777 == 0o600
    assert serving_tokens(settings(tmp_path)) == pair
    assert read_token_file(tmp_path) == {"token": pair.token, "worker_token": pair.worker_token}


def test_a_configured_token_is_not_written_down(tmp_path: Path) -> None:
    pair = serving_tokens(settings(tmp_path, NOETL_TOKEN=GOOD))
    assert pair.token == GOOD
    assert read_token_file(tmp_path) == {"worker_token": pair.worker_token}
    serving_tokens(settings(tmp_path, NOETL_TOKEN=GOOD, NOETL_WORKER_TOKEN=OTHER))
    assert not token_path(tmp_path).exists()


def test_one_token_for_both_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="differ"):
        serving_tokens(settings(tmp_path, NOETL_TOKEN=GOOD, NOETL_WORKER_TOKEN=GOOD))


def test_a_token_file_that_others_could_read_or_swap_is_not_believed(tmp_path: Path) -> None:
    path = token_path(tmp_path)
    path.write_text(json.dumps({"token": GOOD}))
    path.chmod(0o644)
    assert read_token_file(tmp_path) == {}
    path.chmod(0o600)
    assert read_token_file(tmp_path) == {"token": GOOD}
    real = tmp_path / "elsewhere"
    path.rename(real)
    path.symlink_to(real)
    assert read_token_file(tmp_path) == {}
    path.unlink()
    for broken in ("", "[]", "{", '{"token": 1}'):
        path.write_text(broken)
        path.chmod(0o600)
        assert read_token_file(tmp_path) == {}


def test_a_token_is_known_by_its_digest_and_by_nothing_less(tmp_path: Path) -> None:
    listed = tmp_path / "tokens.json"
    digest = hashlib.sha256(b"third").hexdigest()
    listed.write_text(json.dumps([{"sha256": digest, "scopes": ["api"], "tenant_id": "acme"}]))
    pair = serving_tokens(settings(tmp_path))
    tokens = Tokens(grants_of(pair, listed))

    def identity(token: str) -> Any:
        return tokens.identity(token.encode())

    assert identity(pair.token).scopes == {"api", "worker", "admin"}
    assert identity(pair.worker_token).scopes == {"worker"}
    assert (identity("third").scopes, identity("third").tenant_id) == ({"api"}, "acme")
    for wrong in ("", pair.token[:-1], f"{pair.token} ", digest):
        assert identity(wrong) is None


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {},
        {"sha256": "x", "scopes": ["api"]},
        {"sha256": "0" * 64, "scopes": []},
        {"sha256": "0" * 64, "scopes": ["root"]},
        {"sha256": "0" * 64, "scopes": "api"},
        {"sha256": "0" * 64, "scopes": ["api"], "tenant": "x"},
        {"sha256": "0" * 64, "scopes": ["api"], "tenant_id": ""},
        {"sha256": "0" * 64, "scopes": ["worker"], "tenant_id": "acme"},
    ],
)
def test_an_entry_of_the_tokens_file_that_is_wrong_is_named(tmp_path: Path, entry: Any) -> None:
    listed = tmp_path / "tokens.json"
    listed.write_text(json.dumps([{"sha256": "1" * 64, "scopes": ["api"]}, entry]))
    pair = serving_tokens(settings(tmp_path))
    with pytest.raises(SettingsInvalid, match="entry 2"):
        grants_of(pair, listed)


def test_a_tokens_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    pair = serving_tokens(settings(tmp_path))
    listed = tmp_path / "tokens.json"
    for text in ("{", "{}"):
        listed.write_text(text)
        with pytest.raises(SettingsInvalid, match="NOETL_TOKENS_FILE"):
            grants_of(pair, listed)
    with pytest.raises(SettingsInvalid, match="NOETL_TOKENS_FILE"):
        grants_of(pair, tmp_path / "missing")


def test_several_servers_are_named_with_commas() -> None:
    found = read_settings({"NOETL_SERVER_URL": "http://a:1, https://b:2/,http://a:1"})
    assert found.server_urls == ("http://a:1", "https://b:2")
    assert found.server_url == "http://a:1"
    assert server_urls(None, "n") == server_urls("", "n") == ()
    with pytest.raises(SettingsInvalid, match="NOETL_SERVER_URL"):
        read_settings({"NOETL_SERVER_URL": "http://a:1,ftp://b"})
