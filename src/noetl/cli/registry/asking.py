"""Asking the host for something that needs no execution to move."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from urllib.parse import quote

from noetl.cli.attach import attach
from noetl.cli.client import Client, Refused
from noetl.cli.text import print_problem
from noetl.settings import Settings

Verb = Callable[[argparse.Namespace, Client], int]
Verbs = argparse._SubParsersAction  # argparse has no public name for what `add_subparsers` returns


def asking(verb: Verb) -> Callable[[argparse.Namespace, Settings], int]:
    """A command of the command line from a verb that wants a client.

    The host behind it may be one that resumes nothing: registering must not set open executions going."""

    def command(arguments: argparse.Namespace, settings: Settings) -> int:
        attachment = attach(settings, resume=False)
        try:
            return answered(verb, arguments, attachment.client)
        finally:
            attachment.leave()

    return command


def answered(verb: Verb, arguments: argparse.Namespace, client: Client) -> int:
    try:
        return verb(arguments, client)
    except Refused as refused:
        print_problem(refused.body, is_json=False)
        return 2


def within(path: str, name: str) -> str:
    """The address of one thing; its name may hold anything, also slashes."""
    return f"{path}/{quote(name, safe='')}"


def group(verbs: Verbs[argparse.ArgumentParser], name: str, help_text: str) -> Verbs[argparse.ArgumentParser]:
    """`noetl NAME …` with verbs of its own."""
    parser = verbs.add_parser(name, help=help_text, description=help_text)
    return parser.add_subparsers(required=True, metavar="VERB")


def reaches_servers(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds where a verb is to be done."""
    parser.add_argument("--server", metavar="URL", help="use this server; NOETL_SERVER_URL")
    parser.add_argument(
        "--runtime",
        choices=("local", "distributed"),
        help="the engine of this home, or a server; by default the server when one is configured",
    )
    return parser


def add_verb(verbs: Verbs[argparse.ArgumentParser], name: str, verb: Verb, help_text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(command=asking(verb))
    return parser
