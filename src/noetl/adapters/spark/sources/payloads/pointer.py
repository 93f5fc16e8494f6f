"""The file that names a dataset: its reference as JSON, put into its place in one step.

A dataset is called by its content, so nobody can choose its locator before it is written.  What can be chosen is this
file; `load` takes it wherever it takes a locator."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, RequestInvalid
from noetl.core.reference import Reference, reference_from_json

POINTER_BYTES_MAX = 64 * 1024


def path_of(text: str) -> Path:
    """A path of this machine.  Raises RequestInvalid."""
    parts = urlsplit(text)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise RequestInvalid(f"a file of this machine names a dataset, not {parts.scheme}://…")
    return Path(unquote(parts.path) if parts.scheme == "file" else text).expanduser()


def read_pointer(path: Path) -> Reference | None:
    """None when there is none.  Raises RequestInvalid for a file that is something else."""
    try:
        with path.open("rb") as file:
            content = file.read(POINTER_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestInvalid(f"{path} cannot be read: {error.strerror}") from error
    try:
        return reference_from_json(json.loads(content))
    except (ValueError, TypeError, EnvelopeInvalid) as error:
        raise RequestInvalid(f"{path} names no dataset: it is no file that `noetl` has written") from error


def write_pointer(path: Path, reference: Reference) -> None:
    """Whole or not at all, whoever reads meanwhile."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    passing = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(canonical_bytes(reference.to_json()))
            file.flush()
            os.fsync(file.fileno())
        passing.replace(path)
    finally:
        passing.unlink(missing_ok=True)


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """One who appends at a time: the next one must see what this one adds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RequestInvalid(f"{path.parent} is no folder to write to: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
