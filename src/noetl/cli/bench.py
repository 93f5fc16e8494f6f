"""`noetl bench`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable

import uvloop

from noetl.bench.appends import append
from noetl.bench.compiling import compile_steps
from noetl.bench.control.plane import control
from noetl.bench.data.plane import data
from noetl.bench.ground import Ground, ground
from noetl.bench.items import loop
from noetl.bench.limits import limits
from noetl.bench.loops import http_map, map_items
from noetl.bench.measure import Report
from noetl.bench.remote import remote_chain, remote_map
from noetl.bench.runs import chain, latency
from noetl.cli.text import fail, note, out
from noetl.processes.host.lock import HostLock
from noetl.processes.host.places import make_home, places_of
from noetl.processes.objects import settle_memory
from noetl.settings import Settings


async def spark(place: Ground) -> Report:
    """Loaded when it is asked for: nothing else of this program needs pyspark in its own process."""
    from noetl.bench.spark.plane import spark as measured  # noqa: PLC0415 - as said above

    return await measured(place)


BENCHMARKS: dict[str, Callable[[Ground], Awaitable[Report]]] = {
    "latency": latency,
    "chain": chain,
    "append": append,
    "map": map_items,
    "http_map": http_map,
    "loop": loop,
    "compile": compile_steps,
    "data": data,
    "spark": spark,
}

# In processes of their own, with nothing of ours in this one.
ALONE: dict[str, Callable[[Settings], Awaitable[Report]]] = {"control": control, "limits": limits}
REMOTE: dict[str, Callable[[Settings], Awaitable[Report]]] = {"chain": remote_chain, "map": remote_map}


def bench(arguments: argparse.Namespace, settings: Settings) -> int:
    known = [*REMOTE] if arguments.remote else [*BENCHMARKS, *ALONE]
    names = arguments.names or known
    unknown = [name for name in names if name not in known]
    if unknown:
        fail(f"unknown benchmark {unknown[0]!r}: known are {', '.join(known)}")
        return 2
    places = places_of(settings.home)
    make_home(places)
    lock = HostLock(places.lock)
    if not lock.acquire():
        fail(f"process {lock.holder()} is the host of {settings.home}: stop it first with `noetl down`")
        return 2
    settle_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_measure(names, settings, is_json=arguments.json, is_remote=arguments.remote))
    finally:
        lock.release()
    return 0


async def _measure(names: list[str], settings: Settings, *, is_json: bool, is_remote: bool) -> None:
    for name in names:
        if not is_json:
            note(f"measuring {name} …")
        if is_remote or name in ALONE:
            report = await (REMOTE if is_remote else ALONE)[name](settings)
        else:
            async with ground(settings) as place:
                report = await BENCHMARKS[name](place)
        if is_json:
            out(json.dumps(report.to_json()))
            continue
        for key, metric in report.metrics.items():
            shown = metric.to_json()
            limit = f"   limit {shown['limit']} {metric.unit}, ratio {shown['ratio']}" if metric.limit else ""
            out(f"{name:<8} {key:<16} {shown['value']:>10} {metric.unit}{limit}")
