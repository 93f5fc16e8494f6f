"""Settings of all tests, and their order."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.schedule import scope_of, slowest_first

# How long one example takes is a fact about the machine, not about the product.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


class ByScope(LoadScopeScheduling):
    """`--dist loadfile`, but for the groups."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = slowest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByScope | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return ByScope(config, log)
