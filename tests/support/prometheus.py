"""A reader of the text format of Prometheus that believes nothing: what it does not know is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
_KINDS = ("counter", "gauge", "histogram")

Labels = frozenset[tuple[str, str]]


@dataclass(slots=True)
class Family:
    kind: str
    meaning: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, name: str | None = None, **labels: str) -> float:
        """The one sample with at least these labels."""
        wanted = labels.items()
        found = [v for (own, had), v in self.samples.items() if (name is None or own == name) and wanted <= set(had)]
        assert len(found) == 1, (name, labels, self.samples)
        return found[0]


def parse(text: str) -> dict[str, Family]:
    """Every metric.  Fails on anything that the format does not allow."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    current, meaning = "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current, _, meaning = line.removeprefix("# HELP ").partition(" ")
            assert re.fullmatch(_NAME, current), line
            assert current not in families, f"{current} stands twice"
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert (name, kind in _KINDS) == (current, True), line
            families[name] = Family(kind, meaning)
        else:
            _sample(line, current, families[current])
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
        if family.kind == "counter":
            assert name.endswith("_total"), name
            assert all(value >= 0 for value in family.samples.values())
    return families


def _sample(line: str, current: str, family: Family) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found is not None, line
    name, inside, number = found[1], found[2] or "", found[3]
    endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert name in {f"{current}{ending}" for ending in endings}, line
    assert "".join(match[0] for match in _LABEL.finditer(inside)) == inside, line
    labels = frozenset((match[1], match[2]) for match in _LABEL.finditer(inside))
    assert (name, labels) not in family.samples, f"twice: {line}"
    family.samples[name, labels] = float(number)


def _check_histogram(name: str, family: Family) -> None:
    """Buckets grow, the last is everything, and each has a sum and a count."""
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (own, labels), value in family.samples.items():
        if own == f"{name}_bucket":
            bound = float(dict(labels)["le"])
            rest = frozenset(label for label in labels if label[0] != "le")
            series.setdefault(rest, []).append((bound, value))
    for labels, buckets in series.items():
        buckets.sort()
        assert buckets[-1][0] == float("inf")
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert family.samples[f"{name}_count", labels] == buckets[-1][1]
        assert (f"{name}_sum", labels) in family.samples
