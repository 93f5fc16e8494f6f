"""Scrubbing of secrets, with canaries in every form in which they are printed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.secret import Secret
from noetl.engine.work.calling.redact import SECRET_CHARS_MIN, Redactor, secrets_in
from noetl.ports.secrets import Credential

PASSWORD = 'canary/Zq8+fX2 "ü\\é'
PLAIN = "canaryZq8fX2"


def redactor(**data: object) -> Redactor:
    made = Redactor()
    made.learn(Credential(name="x", type="generic", data=Secret(data)))
    return made


def b64(text: str, encoding: str = "utf-8") -> str:
    return base64.b64encode(text.encode(encoding)).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: secret,
    "base64": b64,
    "base64 without padding": lambda secret: b64(secret).rstrip("="),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "base64 for URLs without padding": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="),
    "basic": lambda secret: b64(f"someone:{secret}"),
    "basic, another length": lambda secret: b64(f"some:{secret}"),
    "basic, a third length": lambda secret: b64(f"somebody:{secret}"),
    "basic in Latin-1": lambda secret: b64(f"someone:{secret}", "latin-1"),
    "base64 of a document": lambda secret: b64(json.dumps({"a": 1, "auth": f"x {secret}x"}, ensure_ascii=False)),
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "URL": quote,
    "URL, strict": lambda secret: quote(secret, safe=""),
    "form": quote_plus,
    "URL of a browser": lambda secret: quote(secret, safe="!~*'()"),
    "URL in lower case": lambda secret: "".join(
        chr(byte) if byte < 128 and chr(byte).isalnum() else f"%{byte:02x}" for byte in secret.encode()
    ),
    "JSON": json.dumps,
    "JSON as UTF-8": lambda secret: json.dumps(secret, ensure_ascii=False),
    "Python": repr,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [PLAIN, PLAIN + "1", PLAIN + "12", "pässwörd-é", "abc+/=&?#%", "a_b-c.d~e(f)!*'"])
def test_a_secret_is_found_in_every_form(form: str, secret: str) -> None:
    shown = FORMS[form](secret)
    scrubbed = redactor(password=secret).scrub(f"before <{shown}> behind")
    assert isinstance(scrubbed, str)
    assert "***" in scrubbed
    assert scrubbed.startswith("before <")
    assert scrubbed.endswith("> behind")
    for wrong in FORMS.values():
        assert wrong(secret) not in scrubbed
    # Of a form that stands alone nothing is left, not even its padding.
    if "document" not in form and "basic" not in form:
        assert scrubbed.strip("\"'") in ("before <***> behind", 'before <"***"> behind', "before <'***'> behind")


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"base64 of a document"}))
def test_a_secret_with_quotes_spaces_and_accents_is_found(form: str) -> None:
    scrubbed = redactor(password=PASSWORD).scrub(FORMS[form](PASSWORD))
    assert isinstance(scrubbed, str)
    assert "***" in scrubbed
    assert "canary" not in scrubbed
    assert b64("canary")[:7] not in scrubbed


def test_the_edges_of_base64_go_as_well() -> None:
    scrubbed = redactor(password=PLAIN).scrub("Authorization: Basic " + b64(f"me:{PLAIN}"))
    assert scrubbed == "Authorization: Basic bWU***"


@given(st.text(min_size=SECRET_CHARS_MIN, max_size=40), st.binary(max_size=9), st.binary(max_size=9))
def test_a_secret_anywhere_in_base64_is_found(secret: str, before: bytes, behind: bytes) -> None:
    text = base64.b64encode(before + secret.encode("utf-8", "surrogatepass") + behind).decode()
    assert redactor(password=secret).scrub(text) != text


# --- nested data -----------------------------------------------------------------------------------------


def test_nested_values_and_keys_are_scrubbed() -> None:
    value = {"rows": [{"note": f"is {PLAIN}", PLAIN: 1, "n": 1.5}, ["x", (PLAIN,)], None, True], "ok": "fine"}
    assert redactor(token=PLAIN).scrub(value) == {
        "rows": [{"note": "is ***", "***": 1, "n": 1.5}, ["x", ["***"]], None, True],
        "ok": "fine",
    }


def test_what_holds_no_secret_comes_back_as_the_same_object() -> None:
    clean = {"rows": [{"note": "nothing to see here"}, [1, 2, None]], "t": ("a", "b")}
    value = {"clean": clean, "dirty": [PLAIN]}
    made = redactor(token=PLAIN)
    assert made.scrub(clean) is clean
    scrubbed = made.scrub(value)
    assert isinstance(scrubbed, dict)
    assert scrubbed["clean"] is clean
    assert value["dirty"] == [PLAIN]
    text = "a long text without any secret in it"
    assert made.scrub(text) is text


def test_without_secrets_nothing_is_touched() -> None:
    value = {"a": [PLAIN]}
    assert Redactor().scrub(value) is value
    assert redactor(port=5432, token="short").scrub(value) is value


def test_what_is_too_deep_to_look_through_is_not_let_through() -> None:
    value: object = PLAIN
    for _ in range(100_000):
        value = [value]
    assert redactor(token=PLAIN).scrub(value) == "***"


# --- what is secret --------------------------------------------------------------------------------------


def test_public_fields_and_numbers_are_no_secrets() -> None:
    data = {
        "db_host": "db.example.com",
        "Port": "543200",
        "username": "application",
        "database": "warehouse",
        "region": "europe-west",
        "header_name": "X-Api-Token",
        "type": "service_account",
        "url": "https://example.com/path",
        "servers": ["nats://one:4222", "nats://two:4222"],
        "timeout": 123456789,
        "secure": True,
        "nothing": None,
    }
    assert list(secrets_in(data)) == []


def test_all_other_texts_are_secrets_wherever_they_are() -> None:
    data = {"password": "one", "deep": {"list": ["two", {"any": "three", "host": "four"}]}, "host": "five"}
    assert sorted(secrets_in(data)) == ["one", "three", "two"]


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{PLAIN}@db:5432/x",
        f"nats://me:{PLAIN}@one:4222,nats://me:{PLAIN}@two:4222",
        f"nats://{PLAIN}@one:4222",
        f"https://example.com/hook?user=me&token={PLAIN}&x=1",
        f"host=db user=me password={PLAIN} dbname=x",
        f"host=db user=me password = '{PLAIN}'",
        f"Server=db;Pwd={PLAIN};",
    ],
)
@pytest.mark.parametrize("field", ["url", "dsn"])
def test_a_password_inside_an_address_is_found_by_itself(field: str, address: str) -> None:
    assert redactor(**{field: address}).scrub(f"login failed for me with {PLAIN}") == "login failed for me with ***"


def test_a_password_inside_an_address_is_found_decoded_too() -> None:
    made = redactor(url="postgresql://me:p%40ss%2Fword@db/x")
    assert made.scrub("p%40ss%2Fword and p@ss/word") == "*** and ***"


def test_an_at_sign_in_a_password_does_not_end_it() -> None:
    assert redactor(url="postgresql://me:long@pass@db/x").scrub("it is long@pass") == "it is ***"


def test_a_user_in_an_address_is_no_secret() -> None:
    assert redactor(url="postgresql://application@db/x").scrub("application") == "application"


def test_the_lines_of_a_key_are_found_one_by_one_and_its_frame_stays() -> None:
    lines = [chr(65 + number) * 64 for number in range(4)]
    key = "\n".join(("-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""))
    made = redactor(private_key=key)
    assert made.scrub(f"bad line 2: {lines[2]}") == "bad line 2: ***"
    assert made.scrub("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"
    assert made.scrub(json.dumps({"key": key})) == '{"key": "***"}'
    assert made.scrub(key) == "***"


def test_several_credentials_are_remembered_and_the_longest_match_goes_first() -> None:
    made = redactor(token="canary")
    assert made.scrub("canary canary-and-more") == "*** ***-and-more"
    made.learn_values(["canary-and-more", "tiny"])
    assert made.scrub("canary canary-and-more tiny") == "*** *** tiny"


# --- text that grows -------------------------------------------------------------------------------------------


def streamed(made: Redactor, pieces: list[str]) -> str:
    """What is let go of a text that comes in pieces."""
    found, held = "", ""
    for piece in pieces:
        clean, held = made.released(held + piece)
        found += clean
    rest = made.scrub(held)
    assert isinstance(rest, str)
    return found + rest


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [PLAIN, "pässwörd-é", "abc+/=&?#%", "aabaab-aabaab"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_a_secret_is_found_however_it_is_cut(form: str, secret: str, size: int) -> None:
    made = redactor(password=secret)
    text = f"before {FORMS[form](secret)} after\nand {FORMS[form](secret)}{FORMS[form](secret)} end"
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert streamed(made, pieces) == made.scrub(text)


@given(
    st.lists(st.sampled_from(["aabaab", "aab", "a", "b", "-", "\n", "aabaabc", "YWFiYWFi", "616162"]), max_size=30),
    st.integers(1, 9),
)
def test_pieces_let_nothing_through_that_the_whole_would_not(words: list[str], size: int) -> None:
    made = redactor(password="aabaab", token="aabaabc")
    text = "".join(words)
    found = streamed(made, [text[place : place + size] for place in range(0, len(text), size)])
    assert not made.finds(found.encode())


def test_a_line_without_a_secret_is_let_go_at_once() -> None:
    made = redactor(password=PLAIN)
    assert made.released("nothing here\n") == ("nothing here\n", "")
    assert Redactor().released("no secrets at all") == ("no secrets at all", "")
    assert made.released(f"x {PLAIN[:5]}") == ("x ", PLAIN[:5])
    assert made.released(f"x {PLAIN}") == ("x ", PLAIN)
