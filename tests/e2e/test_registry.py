"""`noetl credential` and `noetl catalog` as a user types them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from noetl.adapters.postgres.locations import existing_place
from tests.support.cli import cli
from tests.support.postgres import SYSTEM_ROOT

CANARY = "canary-Zq8fX2"
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: /examples/hello}
workflow:
- step: start
  tool: {kind: noop}
"""


def holders(text: str, home: Path) -> list[str]:
    """Every file of a home, the data of its Postgres included, that holds the text."""
    roots = (home, existing_place(home.resolve(), SYSTEM_ROOT).directory)
    files = [file for root in roots for file in root.rglob("*") if file.is_file()]
    return [str(file) for file in files if text.encode() in file.read_bytes()]


def test_credentials_and_playbooks_outlive_the_command_that_set_them(tmp_path: Path) -> None:
    data, book = tmp_path / "pg.json", tmp_path / "hello.yaml"
    data.write_text(json.dumps({"host": "db", "password": CANARY}))
    book.write_text(PLAYBOOK)
    with cli() as noetl:
        done = noetl("credential", "set", "team/pg", "--type", "postgres", "--data", f"@{data}")
        assert (done.code, done.stdout) == (0, ""), done.stderr
        key = noetl.home / "credential.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        made = key.read_text()
        done = noetl("catalog", "register", str(book))
        assert (done.code, done.stdout) == (0, "registered /examples/hello version 1\n"), done.stderr
        # Now with a host that stays.
        assert noetl("up").code == 0
        assert [row["name"] for row in noetl("credential", "list", "--json").json] == ["team/pg"]
        assert noetl("catalog", "show", "/examples/hello").stdout == PLAYBOOK
        done = noetl("credential", "set", "token", "--type", "bearer", "--data", json.dumps({"token": CANARY}))
        assert done.code == 0
        assert "@FILE" in done.stderr
        assert noetl("credential", "delete", "team/pg").code == 0
        assert noetl("credential", "delete", "team/pg").code == 2
        assert key.read_text() == made
        assert noetl("down").code == 0
        assert holders(CANARY, noetl.home) == []
        assert holders("team/pg", noetl.home), "the search looks in the wrong place"
