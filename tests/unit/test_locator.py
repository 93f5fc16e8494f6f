"""Locators: one text for each thing, and nothing else is a locator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from noetl.core import locator as locators
from noetl.core.errors import LocatorInvalid
from noetl.core.limits import LOCATOR_CHARS_MAX, LOCATOR_VALUE_CHARS_MAX
from noetl.core.locator import Kind, Locator, Place, build, parse
from noetl.core.locator.kinds import SHAPES
from noetl.core.locator.locality import LEVELS

DIGEST = "0123456789abcdef" * 4
OWNER = ("acme", "care network")
BEGIN = "noetl://tenant/acme/org/care%20network"
HERE = Place(region="eu-1", zone="eu-1a", cluster="prod", node="node/7")
AT = "region/eu-1/zone/eu-1a/cluster/prod/node/node%2F7"
BUILT: dict[str, tuple[str, str]] = {
    "tenant": (locators.tenant_locator("acme"), "noetl://tenant/acme"),
    "organization": (locators.organization_locator(*OWNER), BEGIN),
    "region": (locators.place_locator(*OWNER, Place(region="eu-1")), f"{BEGIN}/region/eu-1"),
    "zone": (locators.place_locator(*OWNER, Place(zone="eu-1a")), f"{BEGIN}/zone/eu-1a"),
    "cluster": (locators.place_locator(*OWNER, Place(cluster="prod")), f"{BEGIN}/cluster/prod"),
    "node": (locators.place_locator(*OWNER, HERE), f"{BEGIN}/{AT}"),
    "worker": (locators.worker_locator(*OWNER, "cpu-01", HERE), f"{BEGIN}/{AT}/worker/cpu-01"),
    "host": (locators.host_locator(*OWNER, "h:1"), f"{BEGIN}/host/h%3A1"),
    "server": (locators.server_locator(*OWNER, "s", HERE), f"{BEGIN}/{AT}/server/s"),
    "projector": (locators.projector_locator(*OWNER, "p-0"), f"{BEGIN}/projector/p-0"),
    "stream": (locators.stream_locator(*OWNER, "NOETL_EVENTS"), f"{BEGIN}/stream/NOETL_EVENTS"),
    "event_stream": (locators.event_stream_locator(*OWNER, 77, 3), f"{BEGIN}/stream/events/77/3"),
    "payload": (locators.payload_locator(*OWNER, DIGEST), f"{BEGIN}/payloads/sha256/{DIGEST}"),
    "cache_entry": (
        locators.cache_entry_locator(*OWNER, "disk", DIGEST, HERE),
        f"{BEGIN}/{AT}/cache/disk/sha256/{DIGEST}",
    ),
    "cache_segment": (locators.cache_segment_locator(*OWNER, "seg.1", HERE), f"{BEGIN}/{AT}/segment/seg.1"),
    "projection_shard": (
        locators.projection_shard_locator(*OWNER, "execution", 0),
        f"{BEGIN}/projection/execution/shard/0",
    ),
    "execution": (locators.execution_locator(*OWNER, 2**63 - 1), f"{BEGIN}/execution/9223372036854775807"),
    "result": (locators.result_locator(*OWNER, 77, "lüd e"), f"{BEGIN}/execution/77/result/l%C3%BCd%20e"),
    "stage": (locators.stage_locator(*OWNER, 77, "each#1"), f"{BEGIN}/execution/77/stage/each%231"),
    "frame": (locators.frame_locator(*OWNER, 77, "each#1", 12), f"{BEGIN}/execution/77/stage/each%231/frame/12"),
    "frame_lease": (
        locators.frame_lease_locator(*OWNER, 77, "each#1", frame=12, attempt=2),
        f"{BEGIN}/execution/77/stage/each%231/frame/12/lease/2",
    ),
    "catalog_entry": (
        locators.catalog_entry_locator(*OWNER, "a/b", 4),
        f"{BEGIN}/catalog/a%2Fb/version/4",
    ),
    "script": (locators.script_locator(*OWNER, "file:///x.py"), f"{BEGIN}/script/file%3A%2F%2F%2Fx.py"),
}
OLD = "noetl://execution/77/result/load/r-1"


# --- each kind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "pair"), BUILT.items(), ids=BUILT)
def test_every_kind_has_one_text(kind: str, pair: tuple[str, str]) -> None:
    built, text = pair
    assert built == text
    assert parse(text).kind == kind
    assert build(parse(text)) == text


def test_no_kind_is_without_a_builder_and_only_old_results_are_not_made_anew() -> None:
    assert set(BUILT) == set(Kind) - {Kind.OLD_RESULT}
    builders = {name for name in locators.__all__ if name.endswith("_locator")}
    assert builders == {f"{kind}_locator" for kind in BUILT} - {
        f"{level}_locator" for level in LEVELS if level != "worker"
    } | {"place_locator", "producer_locator"}


def test_a_locator_says_what_it_names() -> None:
    found = parse(BUILT["frame_lease"][1])
    assert (found.tenant_id, found.organization_id, found.place) == (*OWNER, Place())
    assert (found["stage_id"], found.number("frame"), found.number("attempt")) == ("each#1", 12, 2)
    assert parse(BUILT["cache_entry"][1]).place == HERE
    assert parse(BUILT["worker"][1]).place == Place(
        region="eu-1", zone="eu-1a", cluster="prod", node="node/7", worker="cpu-01"
    )


def test_a_result_as_it_was_named_before_there_were_owners_is_still_read() -> None:
    found = parse(OLD)
    assert (found.kind, found.tenant_id, found.organization_id) == (Kind.OLD_RESULT, None, None)
    assert (found.number("execution_id"), found["step"], found["ref"]) == (77, "load", "r-1")
    assert build(found) == OLD


@pytest.mark.parametrize("kind", ["host", "server", "worker", "projector"])
def test_producers_are_processes(kind: str) -> None:
    assert parse(locators.producer_locator("t", "o", kind, "x")).kind == kind


def test_nothing_else_produces() -> None:
    with pytest.raises(LocatorInvalid, match="no 'payload' makes events: host, projector, server, worker do"):
        locators.producer_locator("t", "o", "payload", "x")


def test_no_two_shapes_can_fit_the_same_segments() -> None:
    shapes = list(SHAPES.items())
    for number, (kind, one) in enumerate(shapes):
        for other_kind, other in shapes[number + 1 :]:
            clash = (
                len(one.segments) == len(other.segments)
                and one.is_owned is other.is_owned
                and all(
                    mine == theirs or "{" in (mine[0], theirs[0])
                    for mine, theirs in zip(one.segments, other.segments, strict=True)
                )
            )
            assert not clash, (kind, other_kind)


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must begin with noetl://"),
        ("tenant/acme", "must begin with noetl://"),
        ("NOETL://tenant/acme", "in lower case"),
        ("s3://tenant/acme", "must begin with noetl://"),
        ("noetl://", "a segment is empty"),
        ("noetl:///tenant/acme", "a segment is empty"),
        ("noetl://tenant/acme/", "a segment is empty"),
        ("noetl://tenant//acme", "a segment is empty"),
        ("noetl://tenant/./org/o", "empty or a dot"),
        ("noetl://tenant/../org/o", "empty or a dot"),
        ("noetl://tenant/acme?x=1", "query or a fragment"),
        ("noetl://tenant/acme#x", "query or a fragment"),
        ("noetl://tenant/a b", "must be written 'a%20b'"),
        ("noetl://tenant/ü", "must be written '%C3%BC'"),
        ("noetl://tenant/%c3%bc", "must be written '%C3%BC'"),
        ("noetl://tenant/%61", "must be written 'a'"),
        ("noetl://tenant/100%", "must be written '100%25'"),
        ("noetl://tenant/%FF", "not percent-encoded UTF-8"),
        ("noetl://Tenant/acme", "there is no kind 'Tenant'"),
        ("noetl://tenant", "ends with 'tenant'"),
        ("noetl://tenant/t/org/o/region", "ends with 'region'"),
        ("noetl://org/o", "an organization belongs to a tenant"),
        ("noetl://region/r", "begin with tenant/NAME/org/NAME"),
        ("noetl://tenant/t/region/r", "begin with tenant/NAME/org/NAME"),
        ("noetl://tenant/t/host/h", "begin with tenant/NAME/org/NAME"),
        (f"noetl://tenant/t{OLD.removeprefix('noetl:/')}", "begin with tenant/NAME/org/NAME"),
        ("noetl://org/o/tenant/t", "the order is tenant, org, region, zone, cluster, node, worker"),
        ("noetl://tenant/t/org/o/node/n/region/r", "the order is"),
        ("noetl://tenant/t/org/o/node/n/node/m", "each once"),
        (f"{BEGIN}/gadget/x", "there is no kind 'gadget'"),
        (f"{BEGIN}/host", "it must be host/{name}"),
        (f"{BEGIN}/payloads/md5/{DIGEST}", "it must be payloads/sha256/{sha256}"),
        (f"{BEGIN}/payloads/sha256/{DIGEST.upper()}", "64 hexadecimal digits in lower case"),
        (f"{BEGIN}/payloads/sha256/{DIGEST[1:]}", "64 hexadecimal digits"),
        (f"{BEGIN}/node/n/payloads/sha256/{DIGEST}", "the same everywhere"),
        (f"{BEGIN}/execution/007", "without zeros before it"),
        (f"{BEGIN}/execution/9223372036854775808", "below 2"),
        (f"{BEGIN}/execution/-1", "decimal digits"),
        (f"{BEGIN}/execution/%D9%A1", "decimal digits"),
        ("noetl://execution/1/result/step", "it must be"),
        (f"{BEGIN}/execution/1/result/step/ref", "it must be"),
        ("noetl://tenant/" + "a" * (LOCATOR_VALUE_CHARS_MAX + 1), "1 to 1,000 characters"),
        ("noetl://tenant/" + "a" * LOCATOR_CHARS_MAX, "the limit is 16,384"),
    ],
)
def test_what_is_no_locator_is_refused_with_what_to_do(text: str, reason: str) -> None:
    with pytest.raises(LocatorInvalid) as refused:
        parse(text)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: locators.tenant_locator(""),
        lambda: locators.tenant_locator("a" * 1_001),
        lambda: locators.tenant_locator("\ud800"),
        lambda: locators.payload_locator("t", "o", "x" * 64),
        lambda: locators.payload_locator("t", "o", DIGEST + "0"),
        lambda: locators.execution_locator("t", "o", -1),
        lambda: locators.execution_locator("t", "o", 2**63),
        lambda: locators.place_locator("t", "o", Place()),
        lambda: build(Locator(kind=Kind.HOST, names=("x",))),
        lambda: build(Locator(kind=Kind.HOST, tenant_id="t", organization_id="o")),
        lambda: build(Locator(kind=Kind.WORKER, tenant_id="t", organization_id="o", place=Place(node="n"))),
        lambda: build(Locator(kind=Kind.TENANT, tenant_id="t", organization_id="o")),
        lambda: build(Locator(kind=Kind.TENANT)),
        lambda: build(Locator(kind=Kind.ORGANIZATION, organization_id="o")),
        lambda: build(Locator(kind=Kind.OLD_RESULT, tenant_id="t", names=("1", "s", "r"))),
        lambda: build(
            Locator(kind=Kind.EXECUTION, tenant_id="t", organization_id="o", place=Place(node="n"), names=("1",))
        ),
    ],
)
def test_what_cannot_be_named_is_not_built(make: Callable[[], str]) -> None:
    with pytest.raises(LocatorInvalid):
        make()


@pytest.mark.parametrize("name", [".", "..", "...", "a.b", "%2E", "tenant", "org", "?", "#", "/", "\0", "\n", "💡"])
def test_any_name_comes_back_as_it_was(name: str) -> None:
    text = locators.result_locator(name, name, 1, name)
    found = parse(text)
    assert (found.tenant_id, found.organization_id, found["step"]) == (name, name, name)
    assert not {"", ".", ".."} & set(text.removeprefix("noetl://").split("/"))


def test_the_longest_names_that_there_are_fit() -> None:
    name = "💡" * 100
    text = locators.script_locator(name, name, "💡" * LOCATOR_VALUE_CHARS_MAX)
    assert len(text) <= LOCATOR_CHARS_MAX
    assert parse(text)["uri"] == "💡" * LOCATOR_VALUE_CHARS_MAX


def test_the_digest_of_a_payload_is_read_from_its_locator_and_from_no_other() -> None:
    assert locators.payload_digest(BUILT["payload"][1]) == DIGEST
    for text in (BUILT["cache_entry"][1], OLD, BUILT["payload"][1] + "/x", "x"):
        assert locators.payload_digest(text) is None


# --- properties ------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20) | st.sampled_from(
    [*LEVELS, "tenant", "org", ".", "..", "payloads", "sha256", "stream", "events", "%", "a/b"]
)
NUMBERS = st.integers(0, 2**63 - 1).map(str)


def values_of(field: str) -> st.SearchStrategy[str]:
    if field == "sha256":
        return st.text("0123456789abcdef", min_size=64, max_size=64)
    return NUMBERS if field in ("execution_id", "shard_id", "frame", "attempt", "version") else NAMES


@st.composite
def named(draw: st.DrawFn) -> Locator:
    kind = draw(st.sampled_from(Kind))
    shape = SHAPES.get(kind)
    known: dict[str, Any] = {}
    if kind in LEVELS:
        levels = LEVELS[: LEVELS.index(kind)]
        known = {level: draw(st.none() | NAMES) for level in levels} | {str(kind): draw(NAMES)}
    elif shape is not None and shape.is_placed:
        known = {level: draw(st.none() | NAMES) for level in LEVELS}
    names = () if shape is None else tuple(draw(values_of(field)) for field in shape.fields)
    is_owned = kind is not Kind.OLD_RESULT
    return Locator(
        kind=kind,
        tenant_id=draw(NAMES) if is_owned else None,
        organization_id=draw(NAMES) if is_owned and kind is not Kind.TENANT else None,
        place=Place(**known),
        names=names,
    )


@given(named())
def test_what_was_built_is_parsed_to_the_same(locator: Locator) -> None:
    assert parse(build(locator)) == locator


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A locator with something of it taken away, doubled, or put in."""
    text = build(draw(named()))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 4)))
        text = (
            text[:start]
            + draw(st.sampled_from(["", "/", "%", "%2f", "%2F", ".", "A", " ", "?", "tenant/x/"]))
            + text[end:]
        )
    return text


WORDS = st.sampled_from(
    [*LEVELS, "tenant", "org", "execution", "result", "stream", "events", "host", "1", "x", "%41", ""]
)


@given(mutated() | st.text() | st.lists(WORDS, max_size=12).map(lambda words: "noetl://" + "/".join(words)))
@example("noetl://tenant/t/org/o/stream/events")
@example("noetl://execution/1/result/a/b")
def test_any_text_is_refused_or_is_the_one_text_of_what_it_names(text: str) -> None:
    with contextlib.suppress(LocatorInvalid):
        assert build(parse(text)) == text


@given(NAMES, NAMES, st.text("0123456789abcdef", min_size=64, max_size=64))
def test_the_quick_builder_of_payloads_gives_what_the_others_give(tenant: str, organization: str, sha256: str) -> None:
    text = locators.payload_locator(tenant, organization, sha256)
    names = (sha256,)
    assert parse(text) == Locator(kind=Kind.PAYLOAD, tenant_id=tenant, organization_id=organization, names=names)
    assert build(parse(text)) == text
