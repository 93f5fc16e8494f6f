"""`noetl doctor` as an operator runs it: at a server, and at home; and what processes log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from noetl.adapters.postgres.embedded import EmbeddedPostgres
from noetl.adapters.system.clock import SystemClock
from noetl.core.codec import sha256_hex
from noetl.core.ids import quarters_from
from noetl.engine.doctor.finding import CODES
from noetl.wiring.databases import control_dsn
from tests.support.cli import Finished, cli
from tests.support.databases import connected, empty_database
from tests.support.server import place, running_server
from tests.support.yaml import one_step

COMING = quarters_from(SystemClock().moment(), 2)[1].name


async def execute(address: str, statement: str) -> None:
    async with connected(address) as connection:
        await connection.execute(statement)


def drop_partition(address: str) -> None:
    asyncio.run(execute(address, f"DROP TABLE noetl.event_{COMING}"))


def codes(done: Finished, key: str = "findings") -> list[str]:
    return [one["code"] for one in done.json[key]]


def test_a_server_is_examined_and_treated() -> None:
    with running_server(workers=1) as server:
        noetl = server.cli()
        well = noetl("doctor")
        assert (well.code, well.stdout) == (0, "nothing is wrong\n"), well.stderr
        drop_partition(server.environment["NOETL_POSTGRES_DSN"])
        ill = noetl("doctor", "--json")
        assert (ill.code, codes(ill), codes(ill, "fixed")) == (1, ["partition.missing"], [])
        assert set(ill.json["findings"][0]) == {"code", "what", "where", "do", "can_fix"}
        treated = noetl("doctor", "--fix", "--json")
        assert (treated.code, codes(treated), codes(treated, "fixed")) == (0, [], ["partition.missing"])


def test_only_an_operator_may_ask() -> None:
    api = {"sha256": sha256_hex(b"of-a-client"), "scopes": ["api"]}
    with place() as somewhere:
        tokens = somewhere.home / "tokens.json"
        tokens.write_text(json.dumps([api]))
        tokens.chmod(0o600)
        somewhere.start_server(NOETL_TOKENS_FILE=str(tokens))
        for method, path in (("GET", "/api/doctor"), ("POST", "/api/doctor/fix")):
            assert somewhere.request(method, path, token=None).status == 401
            assert somewhere.request(method, path, token="of-a-client").status == 403
            assert somewhere.request(method, path, token="worker_token").status == 403
            assert somewhere.request(method, path).status == 200


def test_a_home_is_examined_and_treated_whether_its_host_runs_or_not() -> None:
    with cli() as noetl:
        assert noetl("up").code == 0
        server = EmbeddedPostgres(noetl.home).running()
        assert server is not None
        drop_partition(control_dsn(server))
        told = noetl("doctor")
        assert told.code == 1
        assert f"finding  partition.missing  quarter {COMING}: " in told.stdout
        assert "noetl migrate" in told.stdout
        assert noetl("doctor", "--fix").stdout.startswith("fixed    partition.missing")
        assert noetl("down").code == 0
        assert noetl("doctor", "--json").json == {"fixed": [], "findings": []}


def test_a_database_that_was_not_migrated_is_a_finding() -> None:
    with cli(NOETL_POSTGRES_DSN=empty_database()) as noetl:
        for words in (("doctor", "--json"), ("doctor", "--fix", "--json")):
            done = noetl(*words)
            assert (done.code, codes(done)) == (1, ["migration.pending"]), done.stderr
            assert "noetl migrate" in done.json["findings"][0]["do"]


def test_a_server_logs_lines_of_json_and_a_worker_text_when_it_is_told_to() -> None:
    with running_server(workers=0, NOETL_LOG_LEVEL="INFO") as server:
        worker = server.start_worker(NOETL_LOG_FORMAT="text")
        assert server.finish(server.submit(one_step("result = 'never in a log'")))["status"] == "COMPLETED"
        assert "never in a log" not in server.logs()
        found = [json.loads(line) for line in server.processes[0].text().splitlines() if line.startswith("{")]
        assert {"shards.taken", "role.taken"} <= {line["event"] for line in found}
        for line in found:
            assert line["time"].endswith("Z")
            assert line["level"] in ("info", "warning", "error")
            assert line["logger"]
        assert "INFO noetl.worker session registered session.registered" in worker.text()


def test_every_code_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "operating.md").read_text("utf-8")
    for code, meaning in CODES.items():
        assert f"| `{code}` | {meaning} | " in guide
