"""A file system that is soon full, for processes of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def small_file_system(folder: Path) -> tuple[str, ...]:
    """The words before a command that give it a file system of 4 MB at a folder, in a namespace of its own: as root, or
    as a user who may make one."""
    unshare = shutil.which("unshare")
    assert unshare is not None, "this test needs unshare of util-linux"
    mount = f'mount -t tmpfs -o size=4m tmpfs "{folder}" && exec "$@"'
    ways: list[tuple[str, ...]] = [("--mount",)] if os.geteuid() == 0 else []
    ways.append(("--user", "--map-root-user", "--mount"))
    for way in ways:
        words = (unshare, *way, "sh", "-c", mount, "sh")
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    raise AssertionError("no file system of its own can be mounted: run as root, or allow user namespaces")
