"""Subjects of messages: golden, reversible, and no name can leave its token."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.errors import LocatorInvalid
from noetl.core.limits import SUBJECT_CHARS_MAX
from noetl.core.locator import subjects
from noetl.core.locator.subjects import (
    CommandSubject,
    EventSubject,
    FactSubject,
    Subject,
    parse_subject,
    subject_text,
)

GOLDEN: list[tuple[Subject, str]] = [
    (EventSubject("default", "default", 7, 0), "noetl.events.default.default.7.0"),
    (EventSubject("acme", "care network", 2**63 - 1, 255), "noetl.events.acme.care%20network.9223372036854775807.255"),
    (EventSubject("a.b", "*", 1, 2), "noetl.events.a%2Eb.%2A.1.2"),
    (EventSubject(">", "ü\n", 1, 2), "noetl.events.%3E.%C3%BC%0A.1.2"),
    (EventSubject("$SYS", "a/b%", 1, 2), "noetl.events.%24SYS.a%2Fb%25.1.2"),
    (CommandSubject("default"), "noetl.commands.default"),
    (CommandSubject("gpu.large"), "noetl.commands.gpu%2Elarge"),
    (CommandSubject("default", "host-1:7"), "noetl.commands.default.host-1%3A7"),
    (FactSubject(3, "host_1~x"), "noetl.worker.3.host_1~x"),
]


@pytest.mark.parametrize(("subject", "text"), GOLDEN)
def test_subjects_are_written_in_one_way_and_read_back(subject: Subject, text: str) -> None:
    assert subject_text(subject) == text
    assert parse_subject(text) == subject


def test_filters() -> None:
    assert subjects.events_of_shard(5) == "noetl.events.*.*.*.5"
    assert subjects.events_of_owner("a.b", "c") == "noetl.events.a%2Eb.c.>"
    assert subjects.facts_of_shard(5) == "noetl.worker.5.>"
    assert (subjects.ALL_EVENTS, subjects.ALL_FACTS) == ("noetl.events.>", "noetl.worker.>")


def matches(pattern: str, subject: str) -> bool:
    """As a broker matches."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and matches_all(wanted[:-1], tokens[: len(wanted) - 1])
    return len(wanted) == len(tokens) and matches_all(wanted, tokens)


def matches_all(wanted: list[str], tokens: list[str]) -> bool:
    return all(one in ("*", token) for one, token in zip(wanted, tokens, strict=True))


NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)
SUBJECTS = (
    st.builds(EventSubject, NAMES, NAMES, NUMBERS, NUMBERS)
    | st.builds(CommandSubject, NAMES, st.none() | NAMES)
    | st.builds(FactSubject, NUMBERS, NAMES)
)


@given(SUBJECTS)
def test_every_subject_is_read_back_and_is_plain_to_a_broker(subject: Subject) -> None:
    text = subject_text(subject)
    assert parse_subject(text) == subject
    assert re.fullmatch(r"[A-Za-z0-9_~%.-]+", text)
    assert "" not in text.split(".")


@given(st.builds(EventSubject, NAMES, NAMES, NUMBERS, st.integers(0, 9)), NAMES, NAMES, st.integers(0, 9))
def test_a_filter_takes_what_it_names_and_nothing_of_another(
    subject: EventSubject, tenant: str, organization: str, shard: int
) -> None:
    text = subject_text(subject)
    assert matches(subjects.events_of_shard(shard), text) is (subject.shard_id == shard)
    is_mine = (subject.tenant_id, subject.organization_id) == (tenant, organization)
    assert matches(subjects.events_of_owner(tenant, organization), text) is is_mine


@given(
    st.text()
    | st.lists(st.sampled_from(["noetl", "events", "commands", "worker", "1", "01", "*", ">", "%41", "a", ""])).map(
        ".".join
    )
)
def test_any_text_is_refused_or_is_the_one_text_of_its_subject(text: str) -> None:
    with contextlib.suppress(LocatorInvalid):
        assert subject_text(parse_subject(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noetl",
        "noetl.events",
        "noetl.events.>",
        "noetl.events.t.o.1",
        "noetl.events.t.o.1.2.3",
        "noetl.events.*.o.1.2",
        "noetl.events.t.o.01.2",
        "noetl.events.t.o.x.2",
        "noetl.events.t..1.2",
        "noetl.events.%74.o.1.2",
        "noetl.events.%FF.o.1.2",
        "noetl.commands.a.b.c",
        "noetl.worker.1",
        "other.commands.a",
        "noetl.commands." + "a" * SUBJECT_CHARS_MAX,
    ],
)
def test_what_is_no_subject_is_refused(text: str) -> None:
    with pytest.raises(LocatorInvalid, match="no subject of ours"):
        parse_subject(text)


@pytest.mark.parametrize(
    "subject",
    [
        EventSubject("", "o", 1, 2),
        EventSubject("t", "o", -1, 2),
        EventSubject("\ud800", "o", 1, 2),
        CommandSubject("a" * SUBJECT_CHARS_MAX),
    ],
)
def test_what_cannot_be_a_subject_is_not_written(subject: Subject) -> None:
    with pytest.raises(LocatorInvalid):
        subject_text(subject)


@given(st.builds(EventSubject, NAMES, NAMES, NUMBERS, NUMBERS))
def test_an_event_stream_has_a_locator_and_a_subject(subject: EventSubject) -> None:
    assert subjects.event_subject_of(subjects.locator_of(subject)) == subject


def test_nothing_else_has_both() -> None:
    with pytest.raises(LocatorInvalid, match="only an event stream"):
        subjects.event_subject_of("noetl://tenant/acme")
