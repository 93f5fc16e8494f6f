"""Credentials and catalog over Postgres and HTTP, with the command line in front."""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.system.clock import SystemClock
from noetl.cli.client import Client, Refused
from noetl.cli.main import _parser
from noetl.cli.registry import catalog as catalog_verbs
from noetl.cli.registry import credentials as credential_verbs
from noetl.cli.registry.asking import answered
from noetl.core.codec import sha256_hex
from noetl.core.errors import ToolFailed
from noetl.engine.credentials import CredentialOpener
from noetl.settings import Settings, read_settings
from noetl.wiring.credentials import credential_cipher
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.registry import Serving, application_of, registry_of, serving_registry

CANARY = "canary-Zq8fX2"
OWNER = {"tenant_id": "default", "organization_id": "default"}
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workflow:
- step: start
  tool: {kind: noop}
"""
Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"NOETL_HOME": str(tmp_path)})


@pytest.fixture
def serving(address: str, settings: Settings) -> Iterator[Serving]:
    _empty(address)
    with serving_registry(address, settings) as serving:
        yield serving


@asynchronous
async def _empty(address: str) -> None:
    async with connected(address) as connection:
        await connection.execute("TRUNCATE noetl.credential, noetl.catalog, noetl.payload")


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    client = serving.client()
    yield client
    client.close()


@pytest.fixture
def ask(client: Client) -> Ask:
    """One request; a refusal is an answer too."""

    def send(method: str, path: str, body: object = None, **query: object) -> tuple[int, dict[str, Any]]:
        try:
            return 200, client.request(method, path, body=body, **query)
        except Refused as refused:
            return refused.status, refused.body

    return send


# --- credentials over HTTP -------------------------------------------------------------------------------

BODY = {"type": "postgres", "data": {"host": "db", "password": CANARY}, "description": "Orders", "tags": ["prod"]}


def test_a_credential_is_set_listed_described_and_deleted(ask: Ask) -> None:
    status, shown = ask("PUT", "/api/credentials/pg", BODY)
    assert status == 200
    assert shown == {
        "name": "pg",
        "type": "postgres",
        "description": "Orders",
        "tags": ["prod"],
        "updated_at": shown["updated_at"],
    }
    assert ask("GET", "/api/credentials/pg") == (200, shown)
    assert ask("GET", "/api/credentials") == (200, {"credentials": [shown]})
    assert ask("DELETE", "/api/credentials/pg") == (200, {"name": "pg", "deleted": True})
    for method in ("GET", "DELETE"):
        status, problem = ask(method, "/api/credentials/pg")
        assert (status, problem["code"]) == (404, "credential_unknown")


@pytest.mark.parametrize("name", ["team/pg", "/pg", "ü b", "a?b#c", "100%", "..", "a%2Fb", "+"])
def test_a_name_may_hold_anything_printable(ask: Ask, name: str) -> None:
    place = f"/api/credentials/{quote(name, safe='')}"
    assert ask("PUT", place, BODY)[1]["name"] == name
    assert ask("GET", place)[1]["name"] == name
    assert ask("DELETE", place)[1] == {"name": name, "deleted": True}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"data": {"x": CANARY}}, "type: Field required"),
        ({"type": "postgres", "data": CANARY}, "data: Input should be an object"),
        ({"type": "postgres", "data": {}, "password": CANARY}, "password: Extra inputs are not permitted"),
        ({"type": CANARY[:5], "data": {"x": CANARY}}, "unknown credential type"),
        ([CANARY], "the request: Input should be an object"),
        ({"type": "postgres", "data": {"x": CANARY * 10_000}}, "the limit is 65,536"),
    ],
)
def test_a_wrong_request_is_refused_and_not_quoted(ask: Ask, body: object, message: str) -> None:
    status, problem = ask("PUT", "/api/credentials/pg", body)
    assert (status, problem["code"]) == (422, "request_invalid")
    assert message in problem["detail"]
    assert CANARY not in json.dumps(problem)
    assert ask("GET", "/api/credentials")[1] == {"credentials": []}


def test_a_name_that_cannot_be_is_refused(ask: Ask) -> None:
    for name in ("%00", "%0A", "x" * 201):
        assert ask("PUT", f"/api/credentials/{name}", BODY)[0] == 422
        assert ask("GET", f"/api/credentials/{name}")[0] == 404


def test_a_body_that_is_too_large_is_refused_before_it_is_held(ask: Ask) -> None:
    status, problem = ask("PUT", "/api/credentials/pg", {"type": "postgres", "data": {"x": "y" * 1_000_000}})
    assert (status, problem["code"]) == (413, "too_large")


@asynchronous
async def test_the_table_holds_nothing_of_a_value_and_a_worker_opens_it(
    address: str, settings: Settings, serving: Serving
) -> None:
    client = serving.client()
    client.request("PUT", "/api/credentials/pg", body=BODY)
    client.close()
    async with connected(address) as connection:
        row = await connection.fetchval("SELECT c::text FROM noetl.credential AS c")
    forms = (CANARY, CANARY.encode().hex(), base64.b64encode(CANARY.encode()).decode()[:-2])
    assert not any(form in row for form in forms)
    reader = Reader(address, size_max=1)
    await reader.open()
    try:
        cipher = credential_cipher(settings, is_embedded=True)
        opener = CredentialOpener(PostgresCredentials(reader), cipher, clock=SystemClock())
        assert (await opener.open("pg", **OWNER)).data.reveal() == BODY["data"]
        # A row that somebody copied to another name does not open there.
        async with connected(address) as connection:
            await connection.execute(
                "INSERT INTO noetl.credential (tenant_id, organization_id, name, type, key_id, nonce, ciphertext)"
                " SELECT tenant_id, organization_id, 'copy', type, key_id, nonce, ciphertext FROM noetl.credential"
            )
        with pytest.raises(ToolFailed, match="changed or moved"):
            await opener.open("copy", **OWNER)
    finally:
        await reader.close()


def test_a_server_without_a_key_refuses_credentials_and_says_what_to_set(address: str, tmp_path: Path) -> None:
    _empty(address)
    settings = read_settings({"NOETL_HOME": str(tmp_path), "NOETL_POSTGRES_DSN": address})
    with serving_registry(address, settings) as serving:
        client = serving.client()
        with pytest.raises(Refused, match="set NOETL_CREDENTIAL_KEY_FILE or NOETL_CREDENTIAL_KEY") as caught:
            client.request("PUT", "/api/credentials/pg", body=BODY)
        assert caught.value.body["code"] == "settings_invalid"
        assert client.request("GET", "/api/credentials") == {"credentials": []}
        client.close()
    assert not (tmp_path / "credential.key").exists()


def test_another_owner_gets_the_answer_of_what_is_missing(serving: Serving, ask: Ask) -> None:
    ask("PUT", "/api/credentials/pg", BODY)
    ask("POST", "/api/catalog", {"playbook": PLAYBOOK})
    other = serving.client()
    for path in ("/api/credentials/pg", "/api/catalog/examples%2Fhello"):
        other._connection.request("GET", path, headers={"Noetl-Tenant": "other"})
        response = other._connection.getresponse()
        foreign = response.read()
        assert response.status == 404
        other._connection.request("GET", path.replace("hello", "never").replace("pg", "xy"))
        response = other._connection.getresponse()
        missing = response.read().replace(b"never", b"hello").replace(b"xy", b"pg")
        assert foreign == missing
    other.close()


# --- the catalog over HTTP -------------------------------------------------------------------------------


def test_a_playbook_is_registered_listed_and_read_by_version(ask: Ask) -> None:
    second = PLAYBOOK + "# more\n"
    first = ask("POST", "/api/catalog", {"playbook": PLAYBOOK, "file": "hello.yaml"})[1]
    assert first == {
        "path": "examples/hello",
        "version": 1,
        "newest": 1,
        "catalog_id": first["catalog_id"],
        "sha256": sha256_hex(PLAYBOOK.encode()),
        "digest": sha256_hex(PLAYBOOK.encode()),
        "created": True,
        "warnings": [],
    }
    assert ask("POST", "/api/catalog", {"playbook": second})[1]["version"] == 2
    again = ask("POST", "/api/catalog", {"playbook": PLAYBOOK})[1]
    assert (again["version"], again["newest"], again["created"]) == (1, 2, False)
    (row,) = ask("GET", "/api/catalog")[1]["playbooks"]
    assert (row["path"], row["version"], row["name"]) == ("examples/hello", 2, "hello")
    newest = ask("GET", "/api/catalog/examples/hello")[1]
    assert (newest["version"], newest["playbook"]) == (2, second)
    assert [one["version"] for one in newest["versions"]] == [2, 1]
    old = ask("GET", "/api/catalog/examples/hello", version=1)[1]
    assert (old["version"], old["playbook"]) == (1, PLAYBOOK)


def test_new_and_known_content_have_their_own_status(serving: Serving) -> None:
    connection = serving.client()._connection
    statuses = []
    for _ in range(2):
        connection.request("POST", "/api/catalog", body=json.dumps({"playbook": PLAYBOOK}))
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    assert statuses == [201, 200]


def test_a_path_with_a_leading_slash_is_another_path(ask: Ask) -> None:
    ask("POST", "/api/catalog", {"playbook": PLAYBOOK.replace("examples/", "/examples/")})
    assert ask("GET", "/api/catalog//examples/hello")[1]["path"] == "/examples/hello"
    assert ask("GET", "/api/catalog/%2Fexamples%2Fhello")[1]["path"] == "/examples/hello"
    assert ask("GET", "/api/catalog/examples/hello")[0] == 404


def test_an_invalid_playbook_is_refused_with_its_places(ask: Ask) -> None:
    status, problem = ask("POST", "/api/catalog", {"playbook": PLAYBOOK.replace("noop", "nonsense"), "file": "x.yaml"})
    assert (status, problem["code"]) == (422, "playbook_invalid")
    assert [(one["file"], one["line"]) for one in problem["problems"]] == [("x.yaml", 6)]
    assert ask("GET", "/api/catalog")[1] == {"playbooks": []}


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/catalog/nothing", {}, 404),
        ("/api/catalog/nothing", {"version": 1}, 404),
        ("/api/catalog/nothing", {"version": 0}, 422),
        ("/api/catalog/nothing", {"version": 2**40}, 422),
        ("/api/catalog", {"limit": 0}, 422),
        ("/api/catalog", {"limit": 1001}, 422),
        ("/api/catalog", {"prefix": "x" * 301}, 422),
        ("/api/catalog", {"prefix": "\x00"}, 200),
        ("/api/catalog/%00", {}, 404),
    ],
)
def test_questions_with_and_without_an_answer(ask: Ask, path: str, query: dict[str, object], status: int) -> None:
    assert ask("GET", path, **query)[0] == status


@asynchronous
async def test_the_description_names_every_route_and_body(address: str, settings: Settings) -> None:
    document = application_of(registry_of(address, settings)).openapi()
    assert {path: sorted(methods) for path, methods in document["paths"].items()} == {
        "/api/credentials": ["get"],
        "/api/credentials/{name}": ["delete", "get", "put"],
        "/api/catalog": ["get", "post"],
        "/api/catalog/{path}": ["get"],
        "/api/catalog/{path}/diff": ["get"],
    }
    put = document["paths"]["/api/credentials/{name}"]["put"]
    schema = put["requestBody"]["content"]["application/json"]["schema"]
    assert sorted(schema["required"]) == ["data", "type"]
    assert "snowflake" in schema["properties"]["type"]["enum"]
    post = document["paths"]["/api/catalog"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"]["required"] == ["playbook"]


# --- the command line ------------------------------------------------------------------------------------

VERBS: dict[tuple[str, str], Callable[[argparse.Namespace, Client], int]] = {
    ("credential", "set"): credential_verbs.set_credential,
    ("credential", "list"): credential_verbs.list_credentials,
    ("credential", "delete"): credential_verbs.delete_credential,
    ("catalog", "register"): catalog_verbs.register,
    ("catalog", "list"): catalog_verbs.list_playbooks,
    ("catalog", "show"): catalog_verbs.show,
}
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(client: Client, capsys: pytest.CaptureFixture[str]) -> Say:
    """`noetl WORDS` against the serving registry: code, output, remarks."""

    def run(*words: str) -> tuple[int, str, str]:
        arguments = _parser().parse_args(words)
        code = answered(VERBS[words[0], words[1]], arguments, client)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_credential_from_a_file_is_set_listed_and_deleted(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "pg.json"
    file.write_text(json.dumps(BODY["data"]))
    words = ("credential", "set", "team/pg", "--type", "postgres", "--data", f"@{file}")
    code, output, remarks = say(*words, "--description", "Orders", "--tag", "prod", "--tag", "eu")
    assert (code, output) == (0, "")
    assert remarks == "credential team/pg of type postgres is set\n"
    code, output, _ = say("credential", "list")
    assert code == 0
    assert output.split()[:2] == ["team/pg", "postgres"]
    assert "[prod, eu]  Orders" in output
    (row,) = json.loads(say("credential", "list", "--json")[1])
    assert row["name"] == "team/pg"
    assert CANARY not in output + json.dumps(row)
    assert say("credential", "delete", "team/pg")[0] == 0
    code, _, remarks = say("credential", "delete", "team/pg")
    assert (code, remarks) == (2, "error: there is no credential 'team/pg'\n")
    assert "no credentials yet" in say("credential", "list")[2]


def test_a_credential_on_the_command_line_is_taken_with_advice(say: Say) -> None:
    code, _, remarks = say("credential", "set", "t", "--type", "bearer", "--data", json.dumps({"token": CANARY}))
    assert code == 0
    assert "--data @FILE or --data -" in remarks
    assert CANARY not in remarks


def test_a_credential_from_standard_input(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"token": CANARY})))
    code, _, remarks = say("credential", "set", "t", "--type", "bearer", "--data", "-")
    assert (code, remarks) == (0, "credential t of type bearer is set\n")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (f"{{{CANARY}", "not JSON"),
        (f'["{CANARY}"]', "must be a JSON object"),
        ("@absent.json", "absent.json: No such file"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_data_that_cannot_be_read_is_refused_without_quoting_it(say: Say, data: str, message: str) -> None:
    code, output, remarks = say("credential", "set", "t", "--type", "bearer", "--data", data)
    assert (code, output) == (2, "")
    assert message in remarks
    assert CANARY not in remarks


def test_an_unknown_type_is_answered_with_the_list(say: Say) -> None:
    code, _, remarks = say("credential", "set", "t", "--type", "postgresql", "--data", "{}")
    assert code == 2
    assert "use one of api_key," in remarks


def test_files_and_folders_are_registered(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "books" / "deep"
    folder.mkdir(parents=True)
    (folder / "hello.yaml").write_text(PLAYBOOK)
    (folder / "values.yaml").write_text("replicas: 3\n")
    (folder / "notes.txt").write_text(PLAYBOOK)
    (tmp_path / "books" / "other.yml").write_text(PLAYBOOK.replace("examples/hello", "/other"))
    code, output, _ = say("catalog", "register", str(tmp_path / "books"))
    assert code == 0
    assert output.splitlines() == ["registered examples/hello version 1", "registered /other version 1"]
    (folder / "hello.yaml").write_text(PLAYBOOK + "# more\n")
    assert say("catalog", "register", str(folder / "hello.yaml"))[1] == "registered examples/hello version 2\n"
    (folder / "hello.yaml").write_text(PLAYBOOK)
    code, output, _ = say("catalog", "register", str(folder))
    assert output == "unchanged  examples/hello version 1; the newest is version 2\n"
    code, output, _ = say("catalog", "list")
    assert [line.split()[:3] for line in output.splitlines()] == [
        ["/other", "version", "1"],
        ["examples/hello", "version", "2"],
    ]
    assert [row["path"] for row in json.loads(say("catalog", "list", "exam", "--json")[1])] == ["examples/hello"]
    code, output, remarks = say("catalog", "show", "examples/hello")
    assert (code, output) == (0, PLAYBOOK + "# more\n")
    assert remarks.startswith("version 2 of 2, registered ")
    assert say("catalog", "show", "examples/hello", "--version", "1")[1] == PLAYBOOK
    assert json.loads(say("catalog", "show", "/other", "--json")[1])["versions"][0]["version"] == 1


def test_one_bad_playbook_does_not_keep_the_others_out(say: Say, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(PLAYBOOK.replace("noop", "nonsense"))
    (tmp_path / "b.yaml").write_text(PLAYBOOK)
    code, output, remarks = say("catalog", "register", str(tmp_path))
    assert (code, output) == (1, "registered examples/hello version 1\n")
    assert f"error: {tmp_path / 'a.yaml'}:6:" in remarks


def test_what_is_not_there_is_said(say: Say, tmp_path: Path) -> None:
    code, _, remarks = say("catalog", "register", str(tmp_path / "absent.yaml"))
    assert (code, "no such file or folder" in remarks) == (2, True)
    code, _, remarks = say("catalog", "register", str(tmp_path))
    assert (code, "there is no playbook" in remarks) == (2, True)
    code, _, remarks = say("catalog", "show", "nothing")
    assert (code, "noetl catalog list" in remarks) == (2, True)
    assert "noetl catalog register" in say("catalog", "list")[2]
