"""One world for all tests of the folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.language import World, running_world


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("language")) as made:
        yield made
