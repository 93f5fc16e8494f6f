"""`noetl catalog`, `noetl validate` and running by path, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, cli
from tests.support.server import Place, running_server

PARENT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: parent, path: shop/parent}
workload: {factor: 2}
workflow:
- step: start
  tool: {kind: python, script: lib/times.py, input: {n: 21}}
  next: [{step: child}]
- step: child
  tool: {kind: playbook, path: shop/child, input: {n: "{{ start }}"}}
"""
CHILD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child, path: shop/child}
workload: {n: 0}
workflow:
- step: start
  tool: {kind: python, script: {uri: echo.py}, input: {n: "{{ n }}"}}
"""
TIMES = "def main(n, factor):\n    return n * factor\n"


@pytest.fixture(scope="module")
def noetl() -> Iterator[Cli]:
    with cli() as command:
        assert command("up").code == 0
        yield command


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    for file, text in (
        ("a_parent.yaml", PARENT),
        ("lib/times.py", TIMES),
        ("deep/child.yml", CHILD),
        ("deep/echo.py", "result = {'echo': n}\n"),
        ("values.yaml", "replicas: 3\n"),
        (".hidden/old.yaml", PARENT),
    ):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def echo(noetl: Cli, *words: str) -> int:
    """What the child gave back at the end of a run without warnings."""
    done = noetl("run", *words, "--json")
    assert done.code == 0, done
    assert done.json["warnings"] == []
    return int(done.json["result"]["echo"])


def test_a_folder_is_checked_registered_run_changed_and_compared(noetl: Cli, books: Path) -> None:
    done = noetl("catalog", "register", str(books), "--check")
    assert (done.code, done.stdout.split()) == (0, ["valid", "shop/parent", "valid", "shop/child"]), done.stderr
    assert done.stderr == "2 valid (1 other YAML file passed over)\n"
    assert noetl("catalog", "list", "shop/").stdout == ""

    done = noetl("catalog", "register", str(books))
    assert done.stdout == "registered shop/parent version 1\nregistered shop/child version 1\n"
    assert done.stderr == "2 registered (1 other YAML file passed over)\n", "the child came later and is not missing"
    shown = noetl("catalog", "show", "shop/parent", "--json").json
    assert (shown["warnings"], shown["scripts"]["lib/times.py"]["text"]) == ([], TIMES)

    assert echo(noetl, "shop/parent") == 42
    # From the file it is the same, with the scripts that lie beside it.
    assert echo(noetl, str(books / "a_parent.yaml")) == 42

    (books / "lib" / "times.py").write_text(TIMES.replace("n * factor", "n * factor + 1"))
    done = noetl("catalog", "register", str(books / "a_parent.yaml"))
    assert (done.stdout, done.stderr) == ("registered shop/parent version 2\n", "")
    (books / "lib" / "times.py").unlink()
    assert echo(noetl, "shop/parent") == 43
    assert echo(noetl, "shop/parent", "--version", "1") == 42
    done = noetl("catalog", "diff", "shop/parent")
    assert done.code == 0
    assert done.stdout.startswith("~ script lib/times.py: its text\n\n--- shop/parent version 1, script lib/times.py\n")
    assert "-    return n * factor\n+    return n * factor + 1" in done.stdout
    assert noetl("catalog", "diff", "shop/parent", "--exit-code").code == 1
    same = noetl("catalog", "diff", "shop/parent", "--from", "2", "--to", "2", "--exit-code")
    assert (same.code, same.stdout) == (0, "")
    changed = books / "a_parent.yaml"
    changed.write_text(PARENT.replace("factor: 2", "factor: 3"))
    (books / "lib" / "times.py").write_text(TIMES)
    found = noetl("catalog", "diff", "shop/parent", "--from", "1", "--file", str(changed), "--json").json
    assert [(one["what"], one["name"], one["detail"]) for one in found["changes"]] == [("workload", "factor", "2 → 3")]
    assert noetl("catalog", "show", "shop/parent", "--version", "1", "--script", "lib/times.py").stdout == TIMES
    assert "its scripts are lib/times.py" in noetl("catalog", "show", "shop/parent", "--script", "x").stderr
    assert noetl("catalog", "diff", "shop/child").code == 2


def test_every_file_has_its_line_and_what_is_wrong_its_place(noetl: Cli, tmp_path: Path) -> None:
    books = tmp_path / "mixed"
    books.mkdir()
    good = CHILD.replace("shop/child", "mixed/good").replace("{uri: echo.py}", "{source: {type: inline, code: x}}")
    (books / "1_good.yaml").write_text(good + "surprise: 1\n")
    (books / "2_twin.yaml").write_text(good)
    (books / "3_bad.yaml").write_text(good.replace("kind: python", "kind: pyhton"))
    (books / "4_no_yaml.yaml").write_text("apiVersion: noetl.io/v2\n  kind: [")
    (books / "5_script.yaml").write_text(good.replace("{source: {type: inline, code: x}}", "../no/such.py"))
    (books / "6_bytes.yaml").write_bytes(b"apiVersion: noetl.io/v2\n\xff\xfe")
    (books / "7_missing.yaml").write_text(
        good.replace("mixed/good", "mixed/missing").replace(
            "kind: python, ", "kind: playbook, path: mixed/none, auth: none, "
        )
    )
    done = noetl("catalog", "register", str(books))
    assert done.code == 1
    assert done.stdout.splitlines() == [
        "registered mixed/good version 1",
        "registered mixed/good version 2",
        "registered mixed/missing version 1",
    ]
    said = done.stderr
    for line in (
        f"warning: {books}/1_good.yaml:8:11: unknown root key 'surprise' is ignored",
        f"warning: {books}/2_twin.yaml: has the path 'mixed/good' of {books}/1_good.yaml too",
        f"error: {books}/3_bad.yaml:7:16: step 'start', task 'start_task': unknown tool kind 'pyhton'",
        f"error: {books}/4_no_yaml.yaml:2:",
        f"error: {books}/5_script.yaml:7:",
        f"error: {books}/6_bytes.yaml: not UTF-8 text",
        f"warning: {books}/7_missing.yaml:7:32: step 'start', task 'start_task': the catalog has no playbook",
        f"warning: {books}/7_missing.yaml:7:50: step 'start', auth: there is no credential 'none'",
    ):
        assert line in said, (line, said)
    assert str(noetl.home / "scripts") in said
    assert said.splitlines()[-1] == "3 registered, 4 failed, 4 warnings"
    answers = [json.loads(line) for line in noetl("catalog", "register", str(books), "--json").stdout.splitlines()]
    assert {one["path"] for one in answers if "path" in one} == {"mixed/good", "mixed/missing"}
    assert [one["error"]["problems"][0]["code"] for one in answers if "error" in one] == [
        "unknown_kind",
        "yaml_invalid",
        "script_missing",
    ]


def test_what_is_not_there_is_told_by_the_exit_code(noetl: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words in (("catalog", "register"), ("validate",)):
        assert noetl(*words, str(tmp_path / "absent")).code == 2
        done = noetl(*words, str(tmp_path / "empty"))
        assert (done.code, "there is no playbook" in done.stderr) == (2, True)
    done = noetl("run", "no/such/playbook")
    assert done.code == 2
    assert "the catalog has no playbook 'no/such/playbook'" in done.stderr
    assert "there is no file 'no/such/playbook' either" in done.stderr
    done = noetl("run", "absent.yaml")
    assert (done.code, "absent.yaml: No such file" in done.stderr) == (2, True)


def test_files_are_validated_without_a_host(books: Path, tmp_path: Path) -> None:
    alone = Cli(tmp_path / "home")
    done = alone("validate", str(books))
    assert done.code == 0, done.stderr
    assert [line.split(", digest")[0] for line in done.stdout.splitlines()] == [
        f"{books}/a_parent.yaml: valid, 2 steps",
        f"{books}/deep/child.yml: valid, 1 steps",
    ]
    assert not (tmp_path / "home").exists()
    (books / "lib" / "times.py").unlink()
    done = alone("validate", str(books), "--json")
    assert done.code == 1
    assert f"error: {books}/a_parent.yaml:7:32: step 'start', task 'start_task': script 'lib/times.py'" in done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["valid"], len(one["problems"])) for one in found] == [(False, 1), (True, 0)]


def test_no_script_outside_of_the_playbooks_folder_is_sent_along(noetl: Cli, books: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("result = 'SECRET'")
    (books / "link.py").symlink_to(tmp_path / "secret.py")
    for path in ("../secret.py", "link.py", str(tmp_path / "secret.py")):
        (books / "a_parent.yaml").write_text(PARENT.replace("lib/times.py", path))
        done = noetl("run", str(books / "a_parent.yaml"))
        assert done.code == 2
        assert "outside of every root" in done.stderr
    # A folder that the host was told about is another matter.
    with cli(NOETL_SCRIPT_ROOTS=str(tmp_path)) as rooted:
        (books / "a_parent.yaml").write_text(
            PARENT.replace("lib/times.py", "secret.py").replace("[{step: child}]", "[]")
        )
        assert rooted("run", str(books / "a_parent.yaml"), "--json").json["result"] == "SECRET"


# --- a server and a worker -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    roots = tmp_path_factory.mktemp("server_only")
    (roots / "shared.py").write_text("def main(n):\n    return {'shared': n}\n")
    with running_server(workers=0) as found:
        # The worker has no files: its only root does not exist.
        found.processes[0].end()
        found.start_server(NOETL_SCRIPT_ROOTS=str(roots))
        found.start_worker(NOETL_SCRIPT_ROOTS=str(roots / "absent"))
        yield found


def test_a_remote_worker_gets_pinned_scripts_by_reference(server: Place, books: Path) -> None:
    noetl = server.cli()
    assert noetl("catalog", "register", str(books)).code == 0
    assert echo(noetl, "shop/parent") == 42
    text = PARENT.replace("lib/times.py", "shared.py").replace("  next: [{step: child}]\n", "")
    text = text[: text.index("- step: child")]
    assert server.finish(server.submit(text))["result"] == {"shared": 21}
    refused = server.request("POST", "/api/executions", {"playbook": text.replace("shared.py", "absent.py")})
    assert (refused.status, refused.json["problems"][0]["code"]) == (422, "script_missing")
    # What is computed is looked for where the task runs, and there is nothing.
    text = text.replace("shared.py", '"{{ execution_id }}.py"')
    ended = server.finish(server.submit(text))
    assert (ended["status"], ended["error"]["kind"]) == ("FAILED", "config")
    assert "absent" in ended["error"]["message"]


def test_a_server_is_asked_what_is_missing(server: Place, books: Path) -> None:
    (books / "a_parent.yaml").write_text(PARENT.replace("shop/child", "shop/none"))
    noetl = server.cli()
    done = noetl("validate", str(books / "a_parent.yaml"))
    assert done.code == 0
    assert "warning: " in done.stderr
    assert "the catalog has no playbook 'shop/none'" in done.stderr
    # Without the server nobody knows.
    alone = Cli(books / "home")
    assert "shop/none" not in alone("validate", str(books / "a_parent.yaml")).stderr
    body = {"playbook": PARENT.replace("shop/child", "shop/none"), "scripts": {"lib/times.py": TIMES}}
    started = server.request("POST", "/api/executions", body).json
    assert [one["code"] for one in started["warnings"]] == ["missing_playbook"]
    ended = server.finish(started["execution_id"])
    assert [(one["code"], one["line"]) for one in ended["warnings"]] == [("missing_playbook", 10)]
    assert "no playbook 'shop/none'" in noetl("status", started["execution_id"]).stderr


def test_two_versions_are_compared_over_http(server: Place) -> None:
    for path in ("cmp/one", "cmp/one/diff"):
        for factor in (1, 2):
            text = (
                CHILD.replace("shop/child", path).replace("{n: 0}", f"{{n: {factor}}}").replace("echo.py", "shared.py")
            )
            assert server.request("POST", "/api/catalog", {"playbook": text}).status == 201
        if path == "cmp/one":
            found = server.request("GET", "/api/catalog/cmp/one/diff").json
            assert (found["from"]["version"], found["to"]["version"]) == (1, 2)
            assert found["changes"] == [{"change": "changed", "what": "workload", "name": "n", "detail": "1 → 2"}]
            assert "-workload: {n: 1}\n+workload: {n: 2}" in found["text"]
            query = {"from": 2, "to": 1}
            assert server.request("GET", "/api/catalog/cmp/one/diff", **query).json["changes"][0]["detail"] == "2 → 1"
    # A playbook that is called so is found under its name, and the command line compares either.
    assert server.request("GET", "/api/catalog/cmp/one/diff").json["path"] == "cmp/one/diff"
    assert server.cli()("catalog", "diff", "cmp/one").stdout.startswith("~ workload n: 1 → 2\n")
    assert server.request("GET", "/api/catalog/no/such/diff").status == 404
    assert server.request("GET", "/api/catalog/cmp/one/diff/diff", **{"from": 7}).status == 404


def test_an_execution_can_be_started_by_the_number_of_a_version(server: Place) -> None:
    told = []
    for number in (1, 2):
        text = CHILD.replace("shop/child", "num/one").replace(
            "{uri: echo.py}", f"{{source: {{type: inline, code: 'result = {number}'}}}}"
        )
        told.append(server.request("POST", "/api/catalog", {"playbook": text}).json)
    started = server.request("POST", "/api/executions", {"catalog_id": told[0]["catalog_id"]}).json
    ended = server.finish(started["execution_id"])
    assert (ended["result"], ended["catalog"]) == (1, {"id": told[0]["catalog_id"], "version": 1})
    for body in (
        {"catalog_id": "5"},
        {"catalog_id": told[0]["catalog_id"], "version": 1},
        {"catalog_id": told[0]["catalog_id"], "path": "num/one"},
        {"catalog_id": 5},
        {"path": "num/one", "scripts": {"a.py": ""}},
        {"playbook": CHILD, "scripts": {"a.py": 1}},
        {"playbook": CHILD, "scripts": []},
        {"playbook": CHILD, "scripts": {"x" * 2_000: ""}},
    ):
        assert server.request("POST", "/api/executions", body).status in (404, 422), body
