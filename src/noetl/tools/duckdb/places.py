"""Where the files of tasks are: below one folder of this machine, by tenant and organization, and nowhere else.

    <folder>/<tenant>/<organization>/runs/<execution>/main.duckdb   the execution's own database
                                                     /files/        what its statements read and write by relative names
                                                     /tasks/…       spilled and landed rows of running tasks
                                    /databases/<name>               databases with a name, which outlive executions

All of this blocks: run it in a thread."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from noetl.core.limits import DUCKDB_NAME_CHARS_MAX
from noetl.ports.tool import KeptRun
from noetl.tools.duckdb.failures import failed
from noetl.tools.duckdb.request import MEMORY

LOCK = ".lock"
"""Behind the name of a database: held by the one task that has it open.  As the name of a file in the folder of an
execution: shared by all its tasks."""
_RUNS, _TASKS, _FILES, _DATABASES, _MAIN = "runs", "tasks", "files", "databases", "main.duckdb"
# Names that DuckDB and we give to files beside a database.
_RESERVED = (LOCK, ".wal", ".tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """The folders of one task."""

    database: Path | None
    """None for a database in memory."""
    run: Path
    files: Path
    scratch: Path
    is_first: bool
    """Whether there was no such database here before."""


@dataclass(frozen=True, slots=True)
class Owner:
    tenant_id: str
    organization_id: str


class Places:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, database: str | None, owner: Owner, execution_id: int) -> TaskPlace:
        """Folders for a task, made as far as they are missing.  Raises ToolFailed."""
        run = self._of(owner) / _RUNS / str(execution_id)
        place = run / _MAIN if database is None else self.named(database, owner)
        try:
            for folder in (run / _FILES, run / _TASKS, *(() if place is None else (place.parent,))):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            is_first = place is not None and not place.exists()
            # Its age says when the execution was last seen here.
            os.utime(run)
            scratch = Path(tempfile.mkdtemp(prefix="task-", dir=run / _TASKS))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise failed("storage_access", f"the folder of the execution cannot be made: {reason}") from error
        return TaskPlace(database=place, run=run, files=run / _FILES, scratch=scratch, is_first=is_first)

    def named(self, name: str, owner: Owner) -> Path | None:
        """The file of a database with a name; None for one in memory.  Raises ToolFailed."""
        if name == MEMORY:
            return None
        # The root of a name is the folder of the owner's databases, whatever machine the path was written for.
        parts = [part for part in name.split("/") if part not in ("", ".")]
        is_odd = any(part == ".." or part.endswith(_RESERVED) or not part.isprintable() for part in parts)
        is_long = len(name) > DUCKDB_NAME_CHARS_MAX or any(len(part.encode("utf-8", "replace")) > 200 for part in parts)
        if not parts or is_odd or is_long:
            rule = f"printable names with / between them, at most {DUCKDB_NAME_CHARS_MAX} characters, without .."
            raise failed("config", f"database {name[:100]!r} is no name of a database: {rule}", "DUCKDB_NAME")
        return self._of(owner).joinpath(_DATABASES, *parts)

    def _of(self, owner: Owner) -> Path:
        """Nothing of a user's text becomes a path as it is."""
        names = (quote(name, safe="").replace(".", "%2E") for name in (owner.tenant_id, owner.organization_id))
        return self._folder.joinpath(*names)

    # --- what can go -----------------------------------------------------------------------------------------

    def runs(self) -> list[KeptRun]:
        """Executions that have a folder here."""
        return [run for _, run in self._runs()]

    def remove(self, runs: Collection[KeptRun]) -> int:
        """Remove the folders of executions that have ended; how many went.  One that a task is in stays."""
        return sum(_removed(folder) for folder, run in self._runs() if run in runs)

    def remove_unused(self, seconds: float) -> int:
        """Remove the folders of executions that were not seen here for so long."""
        if not self._folder.is_dir():
            return 0
        # The clock of the file system that also dates the folders.
        os.utime(self._folder)
        before = self._folder.stat().st_mtime - seconds
        return sum(_removed(folder) for folder, _ in self._runs() if _used_at(folder) < before)

    def _runs(self) -> list[tuple[Path, KeptRun]]:
        found = []
        for folder in self._folder.glob(f"*/*/{_RUNS}/*"):
            if folder.name.isdigit():
                tenant, organization = folder.parts[-4], folder.parts[-3]
                found.append((folder, KeptRun(unquote(tenant), unquote(organization), int(folder.name))))
        return found


def _used_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return math.inf  # somebody else removed it


def _removed(folder: Path) -> bool:
    try:
        with open(folder / LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    return not folder.exists()
