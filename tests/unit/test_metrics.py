"""Numbers as metrics."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from noetl.adapters.arrow.counters import TableCounters
from noetl.adapters.objects.disk_cache import CacheCounters
from noetl.adapters.system.clock import SystemClock
from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.codec import canonical_bytes
from noetl.core.event import seal
from noetl.core.reference import Result
from noetl.ports.data.counters import Counted, Histogram, Sample
from noetl.processes.metrics.catalogue import METRICS
from noetl.processes.metrics.identity import ProcessInfo
from noetl.processes.metrics.text import exposition
from tests.support.events import EventMaker
from tests.support.prometheus import parse


class Given:
    def __init__(self, *samples: Sample) -> None:
        self._samples = samples

    def samples(self) -> Iterable[Sample]:
        return self._samples


def test_a_histogram_counts_what_is_at_most_a_bound() -> None:
    sizes = Histogram("noetl_event_result_bytes", (10, 100))
    for size in (1, 10, 11, 100, 5000):
        sizes.add(size)
    family = parse(exposition([sizes], {}))["noetl_event_result_bytes"]
    name = "noetl_event_result_bytes_bucket"
    assert [family.value(name, le=bound) for bound in ("10", "100", "+Inf")] == [2, 4, 5]
    assert family.value("noetl_event_result_bytes_sum") == 5122
    assert family.value("noetl_event_result_bytes_count") == 5


def test_every_counter_of_the_data_plane_is_described_and_can_be_read() -> None:
    tables = TableCounters()
    tables.refuse("budget")
    tables.resolved("ipc", 0.003)
    tables.resolved("durable", 0.2)
    families = parse(exposition([tables, CacheCounters(hits=3), ProcessInfo("worker")], {"worker_id": "w"}))
    assert families["tier15_budget_exhaustion_total"].value(worker_id="w") == 1
    assert families["noetl_storage_disk_cache_hits_total"].value() == 3
    resolved = families["noetl_reference_resolve_ms"]
    assert resolved.value("noetl_reference_resolve_ms_count", tier="ipc") == 1
    assert resolved.value("noetl_reference_resolve_ms_bucket", tier="durable", le="100") == 0
    assert families.keys() <= METRICS.keys()


def test_samples_of_several_sources_stand_together_under_one_heading() -> None:
    one = Given(("noetl_storage_ipc_bytes_in_use", {"a": "1"}, 5), ("noetl_storage_ipc_budget_bytes", {}, 9))
    two = Given(("noetl_storage_ipc_bytes_in_use", {"a": "2"}, 0.25))
    family = parse(exposition([one, two], {}))["noetl_storage_ipc_bytes_in_use"]
    assert [family.value(a=number) for number in "12"] == [5, 0.25]


@pytest.mark.parametrize("label", ['a"b', "a\\b", "a\nb", 'x{y="z"} 1', "ü"])
def test_a_label_can_hold_anything(label: str) -> None:
    text = exposition([Given(("noetl_storage_ipc_bytes_in_use", {"a": label}, 1))], {})
    assert len(text.splitlines()) == 3
    ((_, labels),) = parse(text)["noetl_storage_ipc_bytes_in_use"].samples
    ((_, written),) = labels
    assert written.replace(r"\n", "\n").replace(r"\"", '"').replace(r"\\", "\\") == label


@pytest.mark.parametrize(
    ("value", "written"), [(3, "3"), (3.0, "3"), (0.5, "0.5"), (float("inf"), "+Inf"), (float("nan"), "NaN")]
)
def test_numbers_are_written_as_the_format_wants(value: float, written: str) -> None:
    assert exposition([Given(("noetl_storage_ipc_bytes_in_use", {}, value))], {}).endswith(f" {written}\n")


def test_a_metric_that_nobody_described_is_a_defect() -> None:
    with pytest.raises(KeyError):
        exposition([Given(("noetl_unheard_of", {}, 1))], {})


# Names that autoscalers know from elsewhere, whatever their ending says.
FIXED = ("noetl_frame_backlog_total", "noetl_frame_backlog_detail_total")


def test_counters_and_gauges_have_the_endings_that_they_should() -> None:
    for name, described in METRICS.items():
        assert (described.kind == "counter") == (name.endswith("_total") and name not in FIXED), name
        assert described.meaning.endswith("."), name


def test_what_counts_is_seen_as_such() -> None:
    assert isinstance(TableCounters(), Counted)
    assert not isinstance(object(), Counted)


@pytest.mark.parametrize("context", [{}, {"word": "ü" * 50}])
def test_a_sealed_event_knows_the_size_of_its_result(context: dict[str, object]) -> None:
    maker = EventMaker(ids=SnowflakeIds(node=1), clock=SystemClock())
    event = maker.completed(7, result=Result(status="ok", context=context).to_json())
    assert seal(event).result_bytes == len(canonical_bytes(event.result))
