"""A running engine parses a playbook's templates once: not again for the next execution, nor in the worker; after a
restart it parses them once more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.core.expression import forget_templates, parse_count
from noetl.engine.executions import StartRequest
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Running, running_engine

# A driver of Spark is another process and knows no templates; starting one would be most of this test's time.
EXAMPLES = sorted(
    path for path in (Path(__file__).parents[2] / "examples").glob("*.yaml") if not path.name.startswith("spark_")
)


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def run(engine: Running, text: str) -> None:
    """To its end, whatever that is: an example may need somebody to answer it."""
    started = await engine.engine.service.start(StartRequest(text=text, file="example.yaml", payload={}, **OWNER))
    await engine.finish(started.execution_id)


async def run_all(engine: Running, texts: list[str]) -> None:
    """All at once: some of them wait for seconds."""
    async with asyncio.TaskGroup() as group:
        for text in texts:
            group.create_task(run(engine, text))


@asynchronous
async def test_every_example_is_parsed_once_per_process(address: str, tmp_path: Path) -> None:
    texts = [path.read_text("utf-8") for path in EXAMPLES]
    assert len(texts) >= 5
    async with running_engine(address, tmp_path) as engine:
        await run_all(engine, texts)
        # Whatever is parsed from here on would be seen: nothing is known any more but the compiled playbooks.
        forget_templates()
        before = parse_count()
        await run_all(engine, texts)
        assert parse_count() == before
    async with running_engine(address, tmp_path) as engine:
        await run(engine, texts[0])
        assert parse_count() > before
        forget_templates()
        before = parse_count()
        await run(engine, texts[0])
        assert parse_count() == before
