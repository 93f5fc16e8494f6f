"""Where something is, and how far that is from somewhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from noetl.core.errors import LocatorInvalid

LEVELS = ("region", "zone", "cluster", "node", "worker")
"""From coarse to fine; the order of their segments in every locator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """As much as is known of where something is."""

    region: str | None = None
    zone: str | None = None
    cluster: str | None = None
    node: str | None = None
    worker: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """The levels that are known, from coarse to fine."""
        return [(level, value) for level in LEVELS if (value := getattr(self, level)) is not None]

    def to_json(self) -> dict[str, str]:
        return dict(self.pairs())


NOWHERE = Place()


def place_from(known: Mapping[str, str]) -> Place:
    """A place from what a process was told of itself.  Raises LocatorInvalid."""
    unknown = sorted(known.keys() - set(LEVELS))
    if unknown:
        raise LocatorInvalid(f"there is no level {unknown[0]!r} of places: there are {', '.join(LEVELS)}")
    return Place(**known)


class Distance(IntEnum):
    """What two places have in common, the nearest first.  `ANY` is nothing that is known."""

    WORKER = 0
    NODE = 1
    CLUSTER = 2
    ZONE = 3
    REGION = 4
    ANY = 5

    @property
    def word(self) -> str:
        return self.name.lower()


DISTANCES = tuple(distance.word for distance in Distance if distance is not Distance.WORKER)
"""How far from its data something may run, in words; from near to far."""


def distance_named(word: str) -> Distance:
    """Raises LocatorInvalid."""
    for distance in Distance:
        if distance.word == word:
            return distance
    known = ", ".join(distance.word for distance in Distance)
    raise LocatorInvalid(f"there is no distance {word!r}: there are {known}")


def distance_between(one: Place, other: Place) -> Distance:
    """The finest level that both have in common.

    What only one of them knows says nothing.  A level in common does not count when a coarser one differs: node names
    are unique within their cluster, and nowhere else."""
    nearest = Distance.ANY
    for level in LEVELS:
        mine, theirs = getattr(one, level), getattr(other, level)
        if mine is None or theirs is None:
            continue
        if mine != theirs:
            # Another cluster in the same zone is still in that zone, so what was found before stays.
            break
        nearest = Distance[level.upper()]
    return nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How far work is from what it reads, and whether that is near enough for who asked."""

    distance: Distance
    max_distance: Distance | None
    within_max_distance: bool

    def to_json(self) -> dict[str, object]:
        return {
            "distance": self.distance.word,
            "max_distance": None if self.max_distance is None else self.max_distance.word,
            "within_max_distance": self.within_max_distance,
        }


def placement(worker: Place, source: Place, max_distance: Distance | None = None) -> Placement:
    distance = distance_between(worker, source)
    is_within = max_distance is None or distance <= max_distance
    return Placement(distance=distance, max_distance=max_distance, within_max_distance=is_within)
