"""Every suite here runs against the memory adapter and against the real one."""

from __future__ import annotations

import functools

import pytest

from tests.support.backends import OpenBackend, memory_backend, postgres_backend
from tests.support.databases import fresh_database


@pytest.fixture(scope="module")
def address() -> str:
    """A migrated database for one module."""
    return fresh_database()


@pytest.fixture(params=["memory", "postgres"])
def backend(request: pytest.FixtureRequest) -> OpenBackend:
    if request.param == "memory":
        return memory_backend
    return functools.partial(postgres_backend, request.getfixturevalue("address"))
