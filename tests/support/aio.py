"""Asynchronous tests without a plugin: each runs in a loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def asynchronous(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """`@asynchronous async def test_…`: pytest sees a plain function with the same fixtures."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(test(*args, **kwargs))

    return run
