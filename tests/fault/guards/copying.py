"""The product in another folder, whole or without one guard.  The working tree is only ever read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fault.guards.guard import Guard

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "noetl"


def text_without(guard: Guard, text: str) -> str:
    """The file without its guard.  Refused when the table does not fit the file any more."""
    count = text.count(guard.text)
    assert count == 1, (
        f"guard {guard.name!r}: {guard.text!r} occurs {count} times in {guard.file} and must occur once: "
        "bring the table of guards up to date"
    )
    return text.replace(guard.text, guard.instead)


@contextmanager
def whole_copy() -> Iterator[Path]:
    """A folder for the path, with a copy of the package and what is compiled of it."""
    with TemporaryDirectory(prefix="noetl-guards-") as folder:
        # Another process may be compiling: what it has not finished has a longer name.
        shutil.copytree(PACKAGE, Path(folder) / "noetl", ignore=shutil.ignore_patterns("*.pyc.*"))
        yield Path(folder)


@contextmanager
def copy_without(guard: Guard, whole: Path) -> Iterator[Path]:
    """The whole copy once more, but for the file of the guard.  All other files are links: nobody changes them."""
    with TemporaryDirectory(prefix="noetl-guards-") as folder:
        shutil.copytree(whole / "noetl", Path(folder) / "noetl", copy_function=os.link)
        path = Path(folder) / "noetl" / guard.file
        text = text_without(guard, path.read_text("utf-8"))
        path.unlink()
        path.write_text(text, "utf-8")
        if path.suffix == ".py":
            Path(cache_from_source(str(path))).unlink(missing_ok=True)
        yield Path(folder)
