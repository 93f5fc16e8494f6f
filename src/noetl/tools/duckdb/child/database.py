"""One DuckDB for one task: opened, filled with what the task was given, closed to everything else, then asked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa
from pyarrow import ipc

from noetl.core.limits import DUCKDB_BATCH_ROWS, DUCKDB_SPILL_BYTES_MAX
from noetl.tools.duckdb.child.exporting import exportable, quoted
from noetl.tools.duckdb.child.importing import arrow_table
from noetl.tools.duckdb.child.locks import locked
from noetl.tools.sql.split import outer_words

# What a statement may still set: how values are read and written, nothing about resources and files.
_OPEN_SETTINGS = ("TimeZone", "Calendar", "default_null_order", "default_order", "preserve_insertion_order")
_NO_RESULT = (["Success"], ["Count"])


class TableGone(Exception):
    """Shared memory may vanish at any time: the worker knows other copies."""


class Database:
    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._scratch: str = request["scratch"]
        self._tables: dict[str, Any] = {}
        self._locks: list[BinaryIO] = []
        self._connection: Any = None

    def map(self) -> None:
        """Take hold of the tables that the task was given, before anything else: what is mapped cannot vanish."""
        for source in self._request["sources"]:
            try:
                self._tables[source["name"]] = arrow_table(source)
            except FileNotFoundError:
                raise TableGone(source["name"]) from None

    def lock(self) -> None:
        """Wait until nobody else has one of our databases open, in an order that all tasks share."""
        self._locks.append(locked(self._request["run_lock"], is_shared=True))
        for path in sorted(self._request["locks"]):
            self._locks.append(locked(path))

    def open(self) -> None:
        request = self._request
        self._connection = duckdb.connect(
            request["database"],
            config={
                "threads": request["threads"],
                "memory_limit": f"{request['memory_bytes']}B",
                "temp_directory": os.path.join(self._scratch, "spill"),
                "max_temp_directory_size": f"{DUCKDB_SPILL_BYTES_MAX}B",
                "home_directory": self._scratch,
                "secret_directory": os.path.join(self._scratch, "secrets"),
                "allow_persistent_secrets": False,
                "allow_community_extensions": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
                "arrow_lossless_conversion": True,
            },
        )
        for attachment in request["attachments"]:
            mode = " (READ_ONLY)" if attachment["is_read_only"] else ""
            place = attachment["path"].replace("'", "''")
            self._connection.execute(f"ATTACH '{place}' AS {quoted(attachment['alias'])}{mode}")
        for name, table in self._tables.items():
            self._connection.register(name, table)
        self._close_doors()

    def _close_doors(self) -> None:
        """From here on nothing leads out of the folder of the execution, and nothing can change that."""
        run = self._connection.execute
        run("SET TimeZone = 'UTC'")
        run(f"SET extension_directories = [{_literal(self._scratch)}]")
        run(f"SET allowed_directories = [{_literal(self._request['files'] + '/')}]")
        run(f"SET allowed_configs = [{', '.join(_literal(name) for name in _OPEN_SETTINGS)}]")
        run("SET enable_external_access = false")
        run("SET lock_configuration = true")

    def run(self, number: int, text: str, values: Sequence[Any]) -> dict[str, object]:
        """Carry out one statement; its rows go into a file."""
        is_query = self._is_query(text)
        relation = self._connection.sql(text, params=list(values) or None)
        if relation is None:
            return {"row_count": 0}
        columns = list(relation.columns)
        if not is_query and columns in _NO_RESULT:
            changed = [row[0] for row in relation.fetchall() if not isinstance(row[0], bool)]
            return {"row_count": sum(changed)}
        path = os.path.join(self._scratch, f"rows-{number}.arrow")
        return {"row_count": self._write(exportable(relation), path), "columns": columns, "path": path}

    def _is_query(self, text: str) -> bool:
        """Whether the rows of a statement are its result, whatever its columns are called.  Others have one column
        with a word of DuckDB's own, unless they say what they give back."""
        kinds = self._connection.extract_statements(text)[-1].expected_result_type
        if all(kind == duckdb.ExpectedResultType.QUERY_RESULT for kind in kinds):
            return True
        return "returning" in text.lower() and "returning" in outer_words(text)

    @staticmethod
    def _write(relation: Any, path: str) -> int:
        """Batch by batch: memory holds what DuckDB has ready and no more."""
        count = 0
        reader = relation.to_arrow_reader(DUCKDB_BATCH_ROWS)
        with pa.OSFile(path, "wb") as file, ipc.new_stream(file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
                count += batch.num_rows
        return count

    def is_in_transaction(self) -> bool:
        try:
            self._connection.execute("ROLLBACK")
        except duckdb.TransactionException:
            return False
        return True

    def interrupt(self) -> bool:
        """Called from another thread; False when nothing was begun yet."""
        if self._connection is None:
            return False
        self._connection.interrupt()
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        for lock in self._locks:
            lock.close()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, ensure_ascii=True).encode("ascii") + b"\n"
