"""References, locators, and the one shape of an event's result."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid
from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from noetl.core.locator import payload_locator, producer_locator
from noetl.core.reference import (
    MEDIA_JSON,
    RESULT_SHAPE,
    Reference,
    Result,
    address,
    check_result,
    check_result_size,
    reference_from_json,
)

OK = Result(status="ok").to_json()


def payload(content: bytes = b"{}", **names: str) -> Any:
    owner = {"tenant_id": "acme", "organization_id": "sales", **names}
    return address(content, media_type=MEDIA_JSON, store="db", **owner)  # type: ignore[arg-type]


def test_a_payload_is_addressed_by_its_bytes_and_its_owner() -> None:
    one = payload(b"abc").reference
    assert one.sha256 == hashlib.sha256(b"abc").hexdigest()
    assert one.bytes == 3
    assert one.uri == f"noetl://tenant/acme/org/sales/payloads/sha256/{one.sha256}"
    assert payload(b"abc").reference == one
    assert payload(b"abd").reference.uri != one.uri
    assert payload(b"abc", tenant_id="other").reference.uri != one.uri


def test_the_content_of_a_payload_is_not_in_its_repr() -> None:
    assert "secret" not in repr(payload(b"secret"))


@given(
    st.builds(
        Reference,
        kind=st.text(),
        uri=st.text(),
        sha256=st.text(),
        media_type=st.text(),
        bytes=st.integers(),
        store=st.text(),
        row_count=st.none() | st.integers(),
        schema_digest=st.none() | st.text(),
        compression=st.none() | st.text(),
    )
)
def test_a_reference_round_trips_and_leaves_out_what_is_not_known(reference: Reference) -> None:
    document = reference.to_json()
    assert reference_from_json(document) == reference
    assert None not in document.values()


@pytest.mark.parametrize("document", [{}, {"kind": "payload"}, {**payload().reference.to_json(), "elsewhere": {}}])
def test_what_is_no_reference_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(EnvelopeInvalid, match="not a reference"):
        reference_from_json(document)


@pytest.mark.parametrize("name", ["a b", "a/b", "..", "ü", "a?b#c", "100%"])
def test_names_in_locators_are_encoded(name: str) -> None:
    locator = payload_locator(name, "org", "0" * 64)
    assert locator.count("/") == payload_locator("t", "org", "0" * 64).count("/")
    assert not set(locator) & set(" ?#ü")
    assert producer_locator("t", "o", "worker", name).startswith("noetl://tenant/t/org/o/worker/")
    assert producer_locator("t", "o", "worker", name).count("/") == 7


# --- results ---------------------------------------------------------------------------------------------


def test_a_result_has_exactly_the_four_members() -> None:
    reference = payload().reference
    result = Result(status="ok", reference=reference, parent_ref=7, context={"rows": 3}).to_json()
    assert result == {
        "status": "ok",
        "reference": reference.to_json(),
        "parent_ref": {"ref_id": 7},
        "context": {"rows": 3},
    }
    assert set(result) == set(RESULT_SHAPE)
    check_result(result)
    check_result(OK)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "exactly the members"),
        ([], "exactly the members"),
        ({"status": "ok"}, "exactly the members"),
        ({**OK, "data": [1]}, "exactly the members"),
        ({**OK, "status": None}, "result.status must be string"),
        ({**OK, "status": 1}, "result.status must be string"),
        ({**OK, "context": None}, "result.context must be object"),
        ({**OK, "context": []}, "result.context must be object"),
        ({**OK, "reference": "s3://x"}, "result.reference must be object or null"),
        ({**OK, "parent_ref": 7}, "result.parent_ref must be object or null"),
    ],
)
def test_a_result_of_another_shape_is_refused(result: object, message: str) -> None:
    with pytest.raises(EnvelopeInvalid, match=message):
        check_result(result)


def test_a_result_is_small_to_the_byte() -> None:
    room = EVENT_RESULT_BYTES_MAX - len(canonical_bytes({**OK, "context": {"x": ""}}))
    check_result_size({**OK, "context": {"x": "a" * room}})
    with pytest.raises(EnvelopeInvalid, match="by reference"):
        check_result_size({**OK, "context": {"x": "a" * (room + 1)}})
    # The limit counts bytes, not characters.
    with pytest.raises(EnvelopeInvalid, match="by reference"):
        check_result_size({**OK, "context": {"x": "é" * (room // 2 + 1)}})
