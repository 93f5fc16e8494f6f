"""Samples as the text format of Prometheus (version 0.0.4).  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from noetl.ports.data.counters import Counted, Sample
from noetl.processes.metrics.catalogue import METRICS, family_of

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(sources: Iterable[Counted], labels: Mapping[str, str]) -> str:
    """What all sources count, each sample with these labels before its own; samples of one metric stand together."""
    families: dict[str, list[Sample]] = {}
    for source in sources:
        for name, own, value in source.samples():
            families.setdefault(family_of(name), []).append((name, {**labels, **own}, value))
    lines: list[str] = []
    for family, samples in families.items():
        described = METRICS[family]
        lines += (f"# HELP {family} {described.meaning}", f"# TYPE {family} {described.kind}")
        lines += (f"{name}{_labels(own)} {_number(value)}" for name, own, value in samples)
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    return repr(float(value)) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
