"""A worker with a Spark job under way, for tests that kill it.

python -m tests.support.spark_worker <folder>

It prints the number of its driver's process when Spark is at work on the job."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.children import until
from tests.support.spark_drivers import Heard, code_job, own_compute

TEXT = """
def main(spark):
    import time
    return spark.sparkContext.parallelize(range(2), 2).map(lambda n: time.sleep(600)).count()
"""


async def main(folder: Path) -> None:
    heard = Heard()
    async with own_compute(folder) as compute, asyncio.TaskGroup() as group:
        group.create_task(compute.run(code_job(folder, TEXT), heard))
        await until(lambda: any(one.stage is not None for one in heard.progresses), seconds=100)
        sys.stdout.write(f"{compute.pids[0]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
