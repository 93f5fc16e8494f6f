"""`noetl demo`: a whole pipeline on this machine, and what is left of it afterwards."""

from __future__ import annotations

import argparse
from importlib.resources import files
from typing import Any

from noetl.cli.demo.table import table
from noetl.cli.progress import Progress
from noetl.cli.run import Stay
from noetl.cli.text import note, out
from noetl.settings import Settings
from noetl.standin.process import standin_process

PLAYBOOK = "vital_signs.yaml"


def demo(arguments: argparse.Namespace, settings: Settings) -> int:
    text = files("noetl.cli.demo").joinpath(PLAYBOOK).read_text("utf-8")
    note("demo: an API, a parallel loop over it, a table in Postgres and a summary, all on this machine")
    with standin_process() as address:
        note(f"demo: the API answers at {address} and takes 50 requests a second")
        stay = _Demo(settings, is_json=False)
        try:
            return stay.run(text, PLAYBOOK, {"api": address, "patients": arguments.patients})
        except KeyboardInterrupt:
            stay.say_how_to_go_on()
            return 130
        finally:
            stay.leave()


class _Demo(Stay):
    """A run whose result is a table, with a word about what is durable."""

    def show(self, final: dict[str, Any], progress: Progress) -> int:
        if final["status"] != "COMPLETED":
            progress.result(final)
            return 1
        execution_id, rows = final["execution_id"], final["result"]["rows"]
        out("")
        for line in table(rows):
            out(line)
        out("")
        loaded = sum(row["patients"] for row in rows)
        out(f"{loaded} patients, each fetched and loaded once.  What is durable now:")
        out(f"  every step of it    events in the ledger, a Postgres in {self.home}")
        out("  the data            table vital_signs in the database noetl_data of the same Postgres")
        out("  every answer        by digest; kill this at any moment and `noetl up` goes on where it was")
        out("")
        out("Try next:")
        out(f"  noetl events {execution_id}")
        out(f"  noetl status {execution_id}")
        out("  noetl list")
        out("  noetl run examples/hello_world.yaml")
        return 0
