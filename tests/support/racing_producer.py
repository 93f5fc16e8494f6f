"""A process that stores payloads, often the same as others do, and records them a moment later.

`python -m tests.support.racing_producer ADDRESS HOME SEED` goes on until its standard input is closed, and tells for
each execution how long it took from the first look at a store to the answer of the ledger."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.reference import Payload, Result, address
from tests.support.backends import Backend, postgres_backend
from tests.support.events import offer

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
CONTENTS = 6
WAIT_SECONDS_MAX = 0.2


def payload(number: int, store: str) -> Payload:
    return address(f"{store} content {number}".encode(), media_type="text/plain", store=store, **OWNER)


async def produce(backend: Backend, files: FilePayloads, chance: random.Random) -> None:
    make, execution_id = backend.make, backend.make.execution_id() + chance.randrange(1 << 12)
    begun = time.monotonic()
    large = payload(chance.randrange(CONTENTS), "file")
    small = payload(chance.randrange(CONTENTS), "db")
    await files.put(large)
    is_early = chance.random() < 0.5
    if is_early:
        await backend.payloads.put(small)
    await asyncio.sleep(chance.random() * WAIT_SECONDS_MAX)
    result = Result(status="ok", reference=large.reference).to_json()
    event = make.initialized(execution_id, meta={"said": small.reference.to_json()})
    completed = make.completed(execution_id, result=result)
    await backend.ledger.append([offer(execution_id % 2, event, completed, payloads=[] if is_early else [small])])
    print(execution_id, time.monotonic() - begun, flush=True)


async def main(address: str, home: Path, seed: str) -> None:
    chance = random.Random(seed)
    files = FilePayloads(home / "payloads")
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with postgres_backend(address) as backend:
        while not ended.done():
            await asyncio.gather(*(produce(backend, files, chance) for _ in range(3)))
            # Now and then long enough for everything to become garbage.
            await asyncio.sleep(chance.choice((0.0, 0.05, 1.5)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
