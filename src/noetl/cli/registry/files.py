"""Playbooks as files: which there are below a folder, what they say, and the scripts that lie beside them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from noetl.cli.text import fail
from noetl.core.errors import PlaybookInvalid, ScriptUnavailable
from noetl.core.limits import DOCUMENT_BYTES_MAX

SUFFIXES = (".yaml", ".yml")
# What tells a playbook from the other YAML files of a folder.
_PLAYBOOK = re.compile(r"^[\"']?apiVersion[\"']?\s*:\s*[\"']?noetl\.io/", re.MULTILINE)


@dataclass(slots=True)
class Collected:
    """`passed_over` counts YAML files that are no playbooks, `unreadable` what could not even be looked at."""

    files: list[Path] = field(default_factory=list)
    passed_over: int = 0
    unreadable: int = 0


def playbook_files(given: list[str]) -> Collected | None:
    """The files as given, and the playbooks in the folders, each once; None after saying what is not there."""
    found = Collected()
    for name in given:
        path = Path(name)
        if path.is_dir():
            _look_below(path, found)
        elif path.exists():
            found.files.append(path)
        else:
            fail(f"{name}: no such file or folder")
            return None
    found.files = list({file.resolve(): file for file in reversed(found.files)}.values())[::-1]
    return found


def _look_below(folder: Path, found: Collected) -> None:
    def unreadable(error: OSError) -> None:
        fail(f"{error.filename}: {error.strerror}")
        found.unreadable += 1

    inside: list[Path] = []
    for name, folders, files in os.walk(folder, onerror=unreadable):
        # Hidden folders hold what tools keep for themselves.
        folders[:] = [one for one in folders if not one.startswith(".")]
        inside += [Path(name) / one for one in files if one.endswith(SUFFIXES)]
    playbooks = [file for file in sorted(inside) if _is_playbook(file)]
    found.files += playbooks
    found.passed_over += len(inside) - len(playbooks)


def _is_playbook(file: Path) -> bool:
    try:
        return _PLAYBOOK.search(file.read_text("utf-8", errors="replace")) is not None
    except OSError:
        return True  # reading it again will say what is wrong


def read_playbook(file: str) -> str | None:
    """The text of a playbook file, or None after saying what is wrong with it."""
    path = Path(file)
    try:
        size = path.stat().st_size
        if size > DOCUMENT_BYTES_MAX:
            fail(f"{file}: the file has {size:,} bytes, the limit is {DOCUMENT_BYTES_MAX:,}: move data out of it")
            return None
        return path.read_text("utf-8")
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{file}: not UTF-8 text: {error}")
    return None


def read_scripts(file: str, text: str, *roots: Path) -> dict[str, str] | None:
    """The scripts of a playbook that lie below its folder, or else below one of the roots, by path; what lies nowhere
    there may be below a root of the server.  None after saying what is wrong with one."""
    if "script" not in text:
        return {}
    from noetl.core.playbook.lenient import script_paths  # noqa: PLC0415 - few playbooks have scripts

    try:
        paths = script_paths(text, file=file)
    except PlaybookInvalid:
        return {}  # whoever is handed the text says what is wrong with it
    return _script_texts(file, paths, (Path(file).absolute().parent, *roots)) if paths else {}


def _script_texts(file: str, paths: tuple[str, ...], roots: tuple[Path, ...]) -> dict[str, str] | None:
    from noetl.wiring.tools import local_script  # noqa: PLC0415 - as above

    texts: dict[str, str] = {}
    for path in paths:
        try:
            texts[path] = local_script(path, roots).decode("utf-8")
        except ScriptUnavailable as error:
            if not error.is_absent:
                fail(f"{file}: script {path!r} cannot be read: {error}")
                return None
        except UnicodeDecodeError:
            fail(f"{file}: script {path!r} is not UTF-8 text")
            return None
    return texts
