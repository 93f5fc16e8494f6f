"""Any other Postgres: `NOETL_POSTGRES_DSN` and `noetl migrate`."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import cli
from tests.support.postgres import embedded_server
from tests.support.yaml import one_step, write


def test_another_postgres_is_migrated_by_hand_and_then_runs_playbooks(tmp_path: Path) -> None:
    file = write(tmp_path, one_step("result = 7"))
    with embedded_server(version="16") as server, cli(NOETL_POSTGRES_DSN=server.dsn()) as noetl:
        refused = noetl("run", file)
        assert refused.code == 2
        assert "noetl migrate" in refused.stderr
        assert "0001" in noetl("migrate").stdout
        assert "nothing to apply" in noetl("migrate").stdout
        done = noetl("run", file, "--json")
        assert done.code == 0, done.stderr
        assert done.json["result"] == 7
        assert not (noetl.home / "postgres").exists()


def test_a_wrong_dsn_is_exit_two_and_says_what_to_do(tmp_path: Path) -> None:
    file = write(tmp_path, one_step("result = 7"))
    with cli(NOETL_POSTGRES_DSN="mysql://x") as noetl:
        done = noetl("run", file)
        assert done.code == 2
        assert "NOETL_POSTGRES_DSN" in done.stderr
    with cli(NOETL_POSTGRES_DSN=f"postgresql://noetl@/noetl?host={tmp_path}") as noetl:
        done = noetl("run", file)
        assert done.code == 2
        assert "Postgres" in done.stderr


def test_the_embedded_database_needs_no_migrating() -> None:
    with cli() as noetl:
        done = noetl("migrate")
        assert done.code == 2
        assert "migrates itself" in done.stderr


def test_a_setting_out_of_range_refuses_to_start(tmp_path: Path) -> None:
    file = write(tmp_path, one_step("result = 7"))
    for name, value in (("NOETL_SHARD_COUNT", "0"), ("NOETL_WORKER_SLOTS", "many"), ("NOETL_LOG_LEVEL", "loud")):
        with cli(**{name: value}) as noetl:
            done = noetl("run", file)
            assert done.code == 2
            assert name in done.stderr
