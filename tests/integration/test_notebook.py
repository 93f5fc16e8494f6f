"""The notebook of the examples, cell by cell, in a process of its own and over a real run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.cli import QUICK_SPARK, cli

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebooks" / "spark.ipynb"


def test_every_cell_of_the_notebook_runs() -> None:
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in document["cells"]), "outputs are not for the repository"
    with cli(**QUICK_SPARK) as noetl:
        assert noetl("up").code == 0
        assert noetl("run", str(ROOT / "examples" / "spark_join.yaml"), timeout=180).code == 0
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(cells)],
            capture_output=True,
            text=True,
            env=noetl.environment(),
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "playbook.completed" in done.stdout
        assert "noetl://" in done.stdout.splitlines()[-1]
