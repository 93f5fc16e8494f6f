"""One process for one task.

Reads a request (one line of JSON) from its input, answers each statement with a line on its output, and ends.  A second
line on the input, or its end, interrupts: the end means that the worker is gone."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from noetl.core.limits import DUCKDB_FILE_BYTES_MAX, DUCKDB_INTERRUPT_SECONDS
from noetl.tools.duckdb.child.database import Database, TableGone, encode
from noetl.tools.duckdb.child.locks import Removed

# Beside DuckDB's own limit: what libraries and the results on their way take.
_OTHER_MEMORY_BYTES = 1024**3
_ERRORS = (duckdb.Error, pa.ArrowException, OSError, MemoryError, OverflowError, RuntimeError, ValueError)


class Child:
    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._database: Database | None = None
        self._is_interrupted = False

    def serve(self, request: Mapping[str, Any]) -> None:
        _limit(request["memory_bytes"])
        os.chdir(request["files"])
        self._database = database = Database(request)
        number = 0
        try:
            database.map()
            database.lock()
            self._say({"locked": True})
            database.open()
            for number, (text, values) in enumerate(request["statements"]):
                if self._is_interrupted:
                    break
                self._say({"result": database.run(number, text, values)})
            self._say({"done": True, "is_open": database.is_in_transaction()})
        except TableGone as error:
            self._say({"gone": str(error)})
        except Removed:
            self._say({"error": "Removed", "message": "", "number": number})
        except _ERRORS as error:
            self._say({"error": type(error).__name__, "message": str(error)[:8_000], "number": number})
        finally:
            database.close()

    def listen(self) -> None:
        """In a thread of its own: the other one is inside DuckDB."""
        line = sys.stdin.buffer.readline()
        self._is_interrupted = True
        if self._database is None or not self._database.interrupt():
            os._exit(0)
        if not line:
            time.sleep(DUCKDB_INTERRUPT_SECONDS)
            os._exit(1)

    def _say(self, message: Mapping[str, object]) -> None:
        content = memoryview(encode(message))
        while content:
            content = content[os.write(self._answers, content) :]


def _limit(memory_bytes: int) -> None:
    """The kernel's own bounds behind those of DuckDB.  Mapped tables count as no memory of the process."""
    size = 2 * memory_bytes + _OTHER_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DUCKDB_FILE_BYTES_MAX, DUCKDB_FILE_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    os.umask(0o077)
    # What libraries print must not be taken for an answer.
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    child = Child(answers)
    threading.Thread(target=child.listen, daemon=True).start()
    status = 1
    try:
        child.serve(json.loads(line))
        status = 0
    finally:
        # Not by the interpreter's own way out: the other thread waits for input.
        os._exit(status)


if __name__ == "__main__":
    main()
