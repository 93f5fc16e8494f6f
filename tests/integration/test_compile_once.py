"""A running engine parses a playbook's templates once: not again for the next execution, nor in the worker; after a
restart it parses them once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.core.expression import forget_templates, parse_count
from noetl.engine.executions import StartRequest
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Running, running_engine

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def run(engine: Running, text: str) -> None:
    """To its end, whatever that is: an example may need somebody to answer it."""
    started = await engine.engine.service.start(StartRequest(text=text, file="example.yaml", payload={}, **OWNER))
    await engine.finish(started.execution_id)


@asynchronous
async def test_every_example_is_parsed_once_per_process(address: str, tmp_path: Path) -> None:
    texts = [path.read_text("utf-8") for path in EXAMPLES]
    assert len(texts) >= 5
    async with running_engine(address, tmp_path) as engine:
        for text in texts:
            await run(engine, text)
        # Whatever is parsed from here on would be seen: nothing is known any more but the compiled playbooks.
        forget_templates()
        before = parse_count()
        for text in texts:
            await run(engine, text)
        assert parse_count() == before
    async with running_engine(address, tmp_path) as engine:
        for text in texts:
            await run(engine, text)
        assert parse_count() > before
        forget_templates()
        before = parse_count()
        for text in texts:
            await run(engine, text)
        assert parse_count() == before
