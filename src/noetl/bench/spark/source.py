"""`format("noetl")` against `spark.read.parquet`: a full scan of the same files, every column looked at, ours with the
digest of every part checked before a row of it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

RUNS = 8
"""The JVM goes on compiling what it runs for the first four or five; both sides have to be warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """Seconds of the best run of each."""

    native_s: float
    source_s: float

    @property
    def source_ratio(self) -> float:
        """The speed of ours as a share of Spark's own reader's."""
        return self.native_s / self.source_s


def measure_source(spark: Any, locator: str, files: Sequence[str], *, runs: int = RUNS) -> SourceFigures:
    """Turn by turn in one warm session, so that both have the same machine.  The sources must be registered; `files`
    are the parts of the dataset as Spark itself can read them.  Both must find the same rows."""

    def native() -> Any:
        # The schema is given to both: neither has to look for it.
        return spark.read.schema(schema).parquet(*files)

    def ours() -> Any:
        return spark.read.format("noetl").load(locator)

    schema = ours().schema
    expected, found = _scan(native())[1], _scan(ours())[1]  # also warms both up
    assert expected == found, "both read the same rows"
    rounds = [(_seconds(native), _seconds(ours)) for _ in range(runs)]
    return SourceFigures(native_s=min(one for one, _ in rounds), source_s=min(one for _, one in rounds))


def _seconds(frame: Callable[[], Any]) -> float:
    return _scan(frame())[0]


def _scan(frame: Any) -> tuple[float, list[Any]]:
    """A digest over all values, whatever order the rows come in."""
    names = ", ".join(f"`{name}`" for name in frame.columns)
    asked = frame.selectExpr("count(1)", f"bit_xor(xxhash64({names}))")
    started = time.perf_counter()
    rows = asked.collect()
    return time.perf_counter() - started, [tuple(row) for row in rows]
