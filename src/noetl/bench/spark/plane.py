"""`spark`: every figure about Spark in one run."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from noetl.adapters.spark.session import open_session
from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.registering import register_sources
from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report
from noetl.bench.spark.cold import COLD_SECONDS_MAX, COLD_WHEEL_SECONDS_MAX, cold_seconds, cold_wheel_seconds
from noetl.bench.spark.source import SourceFigures, measure_source
from noetl.bench.spark.steps import made, steps
from noetl.core.locator import payload_digest
from noetl.core.reference import MEDIA_JSON, STORE_ANY, Reference
from noetl.wiring.sources import source_access
from noetl.wiring.spark import spark_options

SOURCE_RATIO_MIN = 0.5


async def spark(ground: Ground) -> Report:
    """The start of a session, a step against plain PySpark, and the two ways to read a dataset."""
    options = spark_options(ground.settings)
    cold = await asyncio.to_thread(cold_seconds, options)
    wheel = await asyncio.to_thread(cold_wheel_seconds, options)
    inputs = await made(ground)
    metrics = await steps(ground, inputs)
    source = await _source(ground, inputs["sales"])
    return Report(
        "spark",
        {
            "cold_s": Metric(cold, "s", COLD_SECONDS_MAX),
            "cold_wheel_s": Metric(wheel, "s", COLD_WHEEL_SECONDS_MAX),
            **metrics,
            "source_ratio": Metric(source.source_ratio, "x", SOURCE_RATIO_MIN),
            "source_s": Metric(source.source_s, "s"),
        },
    )


async def _source(ground: Ground, locator: str) -> SourceFigures:
    """In a session of its own, as a notebook has it."""
    settings = ground.settings
    owner = {"tenant_id": settings.tenant_id, "organization_id": settings.organization_id}
    digest = payload_digest(locator)
    assert digest is not None
    reference = Reference(kind="payload", uri=locator, sha256=digest, media_type=MEDIA_JSON, bytes=0, store=STORE_ANY)
    folder = settings.home / "bench"
    shutil.rmtree(folder, ignore_errors=True)
    datasets = ground.engine.payloads.datasets
    assert datasets is not None
    try:
        await datasets.laid_out(reference, folder, **owner)
        return await asyncio.to_thread(_measured, ground, locator, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(ground: Ground, locator: str, folder: Path) -> SourceFigures:
    opened = open_session(spark_options(ground.settings), {}, name="bench")
    try:
        register_sources(opened.spark, Access(own=source_access(ground.settings)))
        return measure_source(opened.spark, locator, sorted(map(str, folder.rglob("*.parquet"))))
    finally:
        opened.close()
