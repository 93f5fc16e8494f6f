"""Engines of tests whose spark steps run in the driver that all tests of this process share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from noetl.ports.tool import Tool
from noetl.settings import Settings
from noetl.tools.spark.tool import SparkTool
from noetl.wiring import engine, tools
from tests.support.spark_drivers import shared_compute


def share_spark(patch: pytest.MonkeyPatch) -> None:
    """A driver costs ten seconds of a processor: engines that are made from now on have no driver of their own."""

    def tools_of(settings: Settings, **options: Any) -> dict[str, Tool]:
        found = tools.tools_of(settings, **options)
        own = found["spark"]
        assert isinstance(own, SparkTool)
        folder = settings.home / "spark" / "jobs"
        return {**found, "spark": SparkTool(replace(own._settings, spark=shared_compute(), spark_folder=folder))}

    patch.setattr(engine, "tools_of", tools_of)
