"""Where a value lies that a template names by its path: large values are pointed at and never copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl.core.expression import View, lookup
from noetl.core.expression.views import Path, place_of, sample
from noetl.core.reference import Reference, reference_from_json
from noetl.engine.stored.reader import EntryView, StepView


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """A path below the result that a reference names; `count` is how many items a list there has."""

    reference: Reference
    path: Path
    count: int | None


def stored_place(names: Mapping[str, object], path: Sequence[str | int], bytes_min: int) -> StoredPlace | None:
    """The place of a value, if it is a part of one stored result as it is and has more bytes than `bytes_min` or parts
    that are stored on their own.  Raises Absent."""
    subject: object = names
    reference: Mapping[str, Any] | None = None
    place: Path = ()
    for key in path:
        if reference is not None:
            below = place_of(subject, key)
            if below is None:
                return None
            place += below
        subject = lookup(subject, key, "path")
        if isinstance(subject, StepView) and not subject._failed:
            reference, place = subject._reference, ()
        elif isinstance(subject, EntryView):
            reference, place = subject._reference, tuple(subject._path)
    if reference is None or not isinstance(subject, View):
        return None
    if subject._bytes_min() <= bytes_min and not subject._holds_parts():
        return None
    count = len(subject) if isinstance(sample(subject), list) else None
    return StoredPlace(reference_from_json(reference), place, count)
