"""Equal values have equal bytes, and what cannot be said in JSON is refused."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.codec import canonical_bytes, canonical_json, parse_json, sha256_hex
from noetl.core.errors import EnvelopeInvalid

FEW = settings(max_examples=25)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, so that 1, 1.0 and True are three."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    return bool(one == other)


@FEW
@given(VALUES)
def test_canonical_json_round_trips(value: object) -> None:
    assert same(parse_json(canonical_bytes(value)), value)
    assert same(parse_json(canonical_json(value)), value)
    assert canonical_json(value).encode() == canonical_bytes(value)


@FEW
@given(VALUES)
def test_canonical_json_is_stable_under_a_round_trip(value: object) -> None:
    once = canonical_bytes(value)
    assert canonical_bytes(parse_json(once)) == once


@FEW
@given(st.dictionaries(st.text(), SCALARS, min_size=2), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value: dict[str, object], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical_bytes(dict(items)) == canonical_bytes(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true],"b":1}'),
        # By code point: an astral character comes after U+FFFF, as in UTF-8 and unlike in UTF-16.
        ({"\U0001f600": 1, "\uffff": 2, "é": 3}, '{"é":3,"\uffff":2,"\U0001f600":1}'),
        (1e22, "1e+22"),
        (-0.0, "-0.0"),
        (0.1 + 0.2, "0.30000000000000004"),
        (2**70, "1180591620717411303424"),
        ("a\x00\n\u2028é", '"a\\u0000\\n\u2028é"'),
    ],
)
def test_canonical_json_is_this_text(value: object, text: str) -> None:
    assert canonical_json(value) == text


def endless() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


def deep() -> object:
    value: object = 1
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        {"a": [math.nan]},
        {1, 2},
        b"bytes",
        object(),
        {"a": 1, 2: 3},
        endless(),
        deep(),
        10**5_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    for encode in (canonical_json, canonical_bytes):
        with pytest.raises(EnvelopeInvalid, match="no canonical JSON form"):
            encode(value)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a", {"b": "\ud800\udc00"}]])
def test_text_that_is_not_unicode_has_no_bytes(value: object) -> None:
    with pytest.raises(EnvelopeInvalid, match="no canonical JSON form"):
        canonical_bytes(value)


def test_a_digest_is_lower_case_sha256() -> None:
    content = canonical_bytes({"a": 1})
    assert sha256_hex(content) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert json.loads(content) == {"a": 1}
