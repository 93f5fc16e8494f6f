"""How far two places are from each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.errors import LocatorInvalid
from noetl.core.locator import (
    NOWHERE,
    Distance,
    Place,
    distance_between,
    distance_named,
    place_from,
    placement,
)
from noetl.core.locator.locality import LEVELS

HERE = {"region": "eu", "zone": "a", "cluster": "prod", "node": "n1", "worker": "w1"}
SOME = st.none() | st.sampled_from("abc")
PLACES = st.builds(Place, region=SOME, zone=SOME, cluster=SOME, node=SOME, worker=SOME)


@pytest.mark.parametrize(
    ("other", "distance"),
    [
        ({}, "worker"),
        ({"worker": "w2"}, "node"),
        ({"node": "n2"}, "cluster"),
        ({"cluster": "test"}, "zone"),
        ({"zone": "b"}, "region"),
        ({"region": "us"}, "any"),
        # The same name elsewhere is another thing.
        ({"region": "us", "node": "n1"}, "any"),
        ({"cluster": "test", "node": "n1", "worker": "w1"}, "zone"),
    ],
)
def test_the_finest_level_in_common_is_the_distance(other: dict[str, str], distance: str) -> None:
    one, two = place_from(HERE), place_from({**HERE, **other})
    assert distance_between(one, two) is distance_named(distance)
    assert distance_between(two, one) is distance_named(distance)


def test_what_only_one_of_them_knows_says_nothing() -> None:
    laptop = Place(node="laptop")
    assert distance_between(laptop, Place(region="eu", node="laptop")) is Distance.NODE
    assert distance_between(laptop, Place(region="eu", node="other")) is Distance.ANY
    assert distance_between(laptop, NOWHERE) is Distance.ANY
    assert distance_between(NOWHERE, NOWHERE) is Distance.ANY


def test_nearer_is_less() -> None:
    assert sorted(Distance) == [
        Distance.WORKER,
        Distance.NODE,
        Distance.CLUSTER,
        Distance.ZONE,
        Distance.REGION,
        Distance.ANY,
    ]
    assert [distance.word for distance in sorted(Distance)] == [*reversed(LEVELS), "any"]


@pytest.mark.parametrize(
    ("max_distance", "is_within"),
    [
        (None, True),
        ("worker", False),
        ("node", False),
        ("cluster", False),
        ("zone", True),
        ("region", True),
        ("any", True),
    ],
)
def test_a_placement_says_whether_it_is_near_enough(max_distance: str | None, is_within: bool) -> None:
    limit = None if max_distance is None else distance_named(max_distance)
    found = placement(place_from(HERE), place_from({**HERE, "cluster": "test"}), limit)
    assert found.to_json() == {"distance": "zone", "max_distance": max_distance, "within_max_distance": is_within}


@given(PLACES, PLACES)
def test_distance_is_the_same_both_ways_and_nothing_is_nearer_than_itself(one: Place, other: Place) -> None:
    assert distance_between(one, other) == distance_between(other, one)
    assert distance_between(one, one) <= distance_between(one, other)


@given(PLACES, PLACES, st.sampled_from(Distance))
def test_whoever_allows_more_refuses_less(one: Place, other: Place, limit: Distance) -> None:
    found = placement(one, other, limit)
    assert found.within_max_distance is (found.distance <= limit)
    assert placement(one, other, Distance.ANY).within_max_distance


def test_places_and_distances_that_there_are_not_are_refused() -> None:
    with pytest.raises(LocatorInvalid, match="no level 'rack'"):
        place_from({"rack": "7"})
    with pytest.raises(LocatorInvalid, match="no distance 'far'"):
        distance_named("far")


@given(PLACES)
def test_a_place_comes_back_from_its_json(place: Place) -> None:
    assert place_from(place.to_json()) == place
