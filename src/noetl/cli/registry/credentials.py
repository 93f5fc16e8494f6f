"""`noetl credential set|list|delete`.  A value goes in and never comes out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from noetl.cli.client import Client
from noetl.cli.registry.asking import Verbs, add_verb, group, within
from noetl.cli.text import fail, note, out
from noetl.core.limits import CREDENTIAL_BYTES_MAX

PATH = "/api/credentials"
# White space around the JSON does not count, and a mistaken file is not read whole.
INPUT_CHARS_MAX = 8 * CREDENTIAL_BYTES_MAX


def add_verbs(verbs: Verbs[argparse.ArgumentParser]) -> None:
    own = group(verbs, "credential", "set, list and delete credentials")

    one = add_verb(own, "set", set_credential, "set a credential, or replace it")
    one.add_argument("name", metavar="NAME")
    one.add_argument("--type", required=True, metavar="TYPE", help="postgres, bearer, basic, api_key, generic …")
    one.add_argument(
        "--data",
        required=True,
        metavar="JSON|@FILE|-",
        help="its fields: a JSON object, @FILE, or - for standard input",
    )
    one.add_argument("--description", metavar="TEXT")
    one.add_argument("--tag", action="append", default=[], metavar="TAG", help="may be given several times")

    one = add_verb(own, "list", list_credentials, "list credentials; their values are never shown")
    one.add_argument("--json", action="store_true")

    one = add_verb(own, "delete", delete_credential, "delete a credential")
    one.add_argument("name", metavar="NAME")


def set_credential(arguments: argparse.Namespace, client: Client) -> int:
    data = read_data(arguments.data)
    if data is None:
        return 2
    body = {
        "type": arguments.type,
        "data": data,
        "description": arguments.description,
        "tags": arguments.tag,
    }
    answer = client.request("PUT", within(PATH, arguments.name), body=body)
    note(f"credential {answer['name']} of type {answer['type']} is set")
    return 0


def list_credentials(arguments: argparse.Namespace, client: Client) -> int:
    rows = client.request("GET", PATH)["credentials"]
    if arguments.json:
        out(json.dumps(rows))
        return 0
    if not rows:
        note("no credentials yet: noetl credential set NAME --type TYPE --data @FILE")
    for row in rows:
        tags = f"  [{', '.join(row['tags'])}]" if row["tags"] else ""
        described = f"  {row['description'].splitlines()[0]}" if row["description"] else ""
        out(f"{row['name']:<24} {row['type']:<16} {row['updated_at'][:19]}Z{tags}{described}")
    return 0


def delete_credential(arguments: argparse.Namespace, client: Client) -> int:
    client.request("DELETE", within(PATH, arguments.name))
    note(f"credential {arguments.name} is deleted")
    return 0


def read_data(given: str) -> dict[str, Any] | None:
    """The fields, or None after saying what is wrong.  No message quotes them."""
    text = _text(given)
    if text is None:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        fail("--data is not JSON: give a JSON object, @FILE, or - for standard input")
        return None
    if not isinstance(data, dict):
        fail('--data must be a JSON object, such as {"token": "…"}')
        return None
    return data


def _text(given: str) -> str | None:
    if given == "-":
        text = sys.stdin.read(INPUT_CHARS_MAX + 1)
    elif given.startswith("@"):
        try:
            with Path(given[1:]).open(encoding="utf-8") as file:
                text = file.read(INPUT_CHARS_MAX + 1)
        except OSError as error:
            fail(f"{given[1:]}: {error.strerror}")
            return None
        except UnicodeDecodeError:
            fail(f"{given[1:]}: not UTF-8 text")
            return None
    else:
        note("note: what stands in a command can be seen in the list of processes and in the shell's history;")
        note("      --data @FILE or --data - keeps it out of both")
        return given
    if len(text) > INPUT_CHARS_MAX:
        fail(f"--data has more than {INPUT_CHARS_MAX:,} characters")
        return None
    return text
