"""A JAVA_HOME for runtimes that Spark's own launcher cannot start.

We start drivers ourselves.  But executors of a cluster on this machine and `spark-submit` in user code go through the
launcher, which asks for a module that a cut-down runtime does not have, and cannot be told otherwise."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from noetl.adapters.spark.runtime.java import VECTOR_MODULE, Java

_SCRIPT = """\
#!/bin/sh
# Drops the module that this runtime does not have, and is the real program otherwise.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def launcher_home(java: Java, runtimes: Path) -> Path:
    """What JAVA_HOME must be for Spark's launcher.  Makes it when it is not there yet."""
    if java.has_vectors:
        return java.home
    home = runtimes / java.identity
    script = home / "bin" / "java"
    text = _SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(java.executable)))
    if _text_of(script) == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    for folder in ("", "bin"):
        for entry in (java.home / folder).iterdir():
            target = home / folder / entry.name
            if entry.name not in ("bin", "java") and not target.is_symlink():
                _link(target, entry)
    _write(script, text)
    return home


def _link(target: Path, entry: Path) -> None:
    try:
        target.symlink_to(entry)
    except FileExistsError:
        return  # another process was faster


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:
        return None


def _write(path: Path, text: str) -> None:
    """Whole or not at all: somebody may be starting it right now."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).chmod(0o755)
    Path(name).rename(path)
