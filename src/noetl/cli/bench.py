"""`noetl bench`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable

import uvloop

from noetl.bench.appends import append
from noetl.bench.ground import Ground, ground
from noetl.bench.measure import Report
from noetl.bench.runs import chain, latency
from noetl.cli.text import fail, note, out
from noetl.processes.host.lock import HostLock
from noetl.processes.host.places import make_home, places_of
from noetl.settings import Settings

BENCHMARKS: dict[str, Callable[[Ground], Awaitable[Report]]] = {
    "latency": latency,
    "chain": chain,
    "append": append,
}


def bench(arguments: argparse.Namespace, settings: Settings) -> int:
    names = arguments.names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        fail(f"unknown benchmark {unknown[0]!r}: known are {', '.join(BENCHMARKS)}")
        return 2
    places = places_of(settings.home)
    make_home(places)
    lock = HostLock(places.lock)
    if not lock.acquire():
        fail(f"process {lock.holder()} is the host of {settings.home}: stop it first with `noetl down`")
        return 2
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_measure(names, settings, is_json=arguments.json))
    finally:
        lock.release()
    return 0


async def _measure(names: list[str], settings: Settings, *, is_json: bool) -> None:
    for name in names:
        if not is_json:
            note(f"measuring {name} …")
        async with ground(settings) as place:
            report = await BENCHMARKS[name](place)
        if is_json:
            out(json.dumps(report.to_json()))
            continue
        for key, metric in report.metrics.items():
            shown = metric.to_json()
            limit = f"   limit {shown['limit']} {metric.unit}, ratio {shown['ratio']}" if metric.limit else ""
            out(f"{name:<8} {key:<16} {shown['value']:>10} {metric.unit}{limit}")
