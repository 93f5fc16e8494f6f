"""`noetl demo`: a whole pipeline on this machine, and what is left of it afterwards."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path
from typing import Any

from noetl.cli.demo.chart import chart
from noetl.cli.demo.table import table
from noetl.cli.progress import Progress
from noetl.cli.run import Stay
from noetl.cli.text import note, out
from noetl.settings import Settings
from noetl.standin.process import standin_process

PLAYBOOK = "vital_signs.yaml"
SCRIPT = "report.py"


def demo(arguments: argparse.Namespace, settings: Settings) -> int:
    note("demo: an API, a parallel loop over it, tables in Postgres, a Spark job and a report, all on this machine")
    with standin_process() as address:
        note(f"demo: the API answers at {address} and takes 50 requests a second")
        stay = _Demo(settings, is_json=False)
        body = {
            "playbook": _text(PLAYBOOK),
            "file": PLAYBOOK,
            "scripts": {SCRIPT: _text(SCRIPT)},
            "payload": {"api": address, "patients": arguments.patients},
        }
        try:
            return stay.start(body, name=PLAYBOOK)
        except KeyboardInterrupt:
            stay.say_how_to_go_on()
            return 130
        finally:
            stay.leave()


def _text(name: str) -> str:
    return files("noetl.cli.demo").joinpath(name).read_text("utf-8")


class _Demo(Stay):
    """A run whose result is a report, with a word about what is durable."""

    def show(self, final: dict[str, Any], progress: Progress) -> int:
        if final["status"] != "COMPLETED":
            progress.result(final)
            return 1
        execution_id, result = final["execution_id"], final["result"]
        months, folder = result["monthly"], self.home / "demo"
        out("")
        for lines in (table(months), [""], chart(months), [""]):
            for line in lines:
                out(line)
        for rule in result["rules"]:
            words = "kept" if rule["met"] else f"broken by {rule['broken']} of {rule['rows']} rows, which are set aside"
            out(f"  {'✓' if rule['met'] else '!'} {rule['name']}: {words}")
        kept = sum(row["patients"] for row in months)
        report = _written(folder / "report.html", result["html"].encode())
        rows = self._parquet(execution_id, folder / "checked.parquet")
        out("")
        out(f"{kept} patients, each fetched, loaded and checked once.  What is there now:")
        out(f"  the report          {report}")
        out(f"  the rows            {rows}, and as a dataset by digest")
        out("  the tables          patients and vital_signs in the database noetl_data of the private Postgres")
        out(f"  every step of it    events in a ledger in {self.home}; killed at any moment, `noetl up` goes on")
        out("")
        out("Try next:")
        out(f"  noetl status {execution_id}")
        out(f"  noetl trace {execution_id} report")
        out(f"  noetl result {execution_id} check --path quarantine.rows")
        out(f"  noetl logs {execution_id}")
        return 0

    def _parquet(self, execution_id: str, file: Path) -> Path:
        """The checked rows as one file, by the way that every client has."""
        assert self._attachment is not None
        place = f"/api/executions/{execution_id}/results/check"
        download = self._attachment.client.download(place, path="rows", format="parquet")
        return _written(file, b"".join(download.pieces()))


def _written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file
