"""Keys that look like credentials: found in every spelling, also deep inside, and paging is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.credential_keys import credential_at, is_credential, is_credential_key, without_credentials

SHAPED = [
    *("password", "PASSWORD", "db_password", "userPassword", "passwd", "pwd", "passphrase", "private_key_passphrase"),
    *("token", "access_token", "accessToken", "AccessToken", "refresh-token", "id_token", "X-Auth-Token", "csrf_token"),
    *("secret", "client_secret", "clientSecret", "secrets", "api_key", "apiKey", "APIKey", "x-api-key", "apikey"),
    *("private_key", "secretAccessKey", "aws_secret_access_key", "signing_key", "Authorization", "authorization"),
    *("proxy-authorization", "set-cookie", "Cookie", "credentials", "credential", "dsn", "connection_string", "jwt"),
]
HARMLESS = [
    *("next_token", "nextToken", "NextToken", "next_page_token", "nextPageToken", "page_token", "pageToken"),
    *("continuation_token", "ContinuationToken", "cursor_token", "sync_token", "nextSyncToken", "start_token"),
    *("tokens", "max_tokens", "token_count", "token_type", "token_url", "secret_name", "credential_name"),
    *("key", "primary_key", "partition_key", "sort_key", "keys", "access_key_id", "password_hash_algorithm", "", "_"),
    *("passwordless", "tokenizer", "secretary", "author", "cookies_accepted", "user", "id", "n" * 1_000 + "_token"),
]


@pytest.mark.parametrize("key", SHAPED)
def test_a_credential_is_known_by_its_name(key: str) -> None:
    assert is_credential_key(key)
    assert credential_at("value", (key,)) == (key,)
    assert credential_at({"a": [{"b": {key: "value"}}]}, ("x",)) == ("x", "a", 0, "b", key)


@pytest.mark.parametrize("key", HARMLESS)
def test_paging_and_ordinary_words_are_left_alone(key: str) -> None:
    assert not is_credential_key(key)
    assert credential_at({"a": [{key: "value"}]}, (key,)) is None


@pytest.mark.parametrize("value", [None, True, False, "", {}, []])
def test_nothing_is_no_credential_whatever_its_name(value: object) -> None:
    assert credential_at(value, ("password",)) is None
    assert credential_at({"password": value}) is None


def test_a_number_or_a_mapping_may_be_one() -> None:
    assert credential_at({"password": 123456}) == ("password",)
    assert credential_at({"credentials": {"any": "thing"}}) == ("credentials",)


def test_the_first_word_of_a_path_counts_as_well() -> None:
    assert credential_at("x", ("credentials", "user")) == ("credentials", "user")


def test_text_that_was_read_from_a_credential_is_one() -> None:
    read = frozenset({("login", "data", "access_token")})
    assert is_credential(read, "Bearer abc")
    assert not is_credential(read, "")
    assert not is_credential(read, 17)
    assert not is_credential(frozenset({("login", "data", "next_token")}), "abc")
    assert is_credential(frozenset(), {"rows": [{"token": "abc"}]})


def test_what_is_hidden_keeps_its_shape() -> None:
    value = {"user": "u", "password": "p", "deep": [{"api_key": 1, "n": 2}], "token": None}
    assert without_credentials(value) == {
        "user": "u",
        "password": "***",
        "deep": [{"api_key": "***", "n": 2}],
        "token": None,
    }
    clean = {"a": [1, {"next_token": "x"}]}
    assert without_credentials(clean) is clean


def test_what_is_too_deep_to_look_through_counts_as_found() -> None:
    value: object = 1
    for _ in range(1_000):
        value = [value]
    assert credential_at(value) is not None


@given(st.text(max_size=30))
def test_every_name_has_an_answer(name: str) -> None:
    assert is_credential_key(name + "_password")
    assert not is_credential_key(name + "_next_token")
