"""`noetl spark info` and `noetl spark prepare`: what drivers find on this machine, and how they start quickly."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from noetl.settings import Settings

Verbs = argparse._SubParsersAction


def add_verbs(verbs: Verbs[argparse.ArgumentParser]) -> None:
    text = "Spark on this machine"
    parser = verbs.add_parser("spark", help=text, description=text)
    below = parser.add_subparsers(required=True, metavar="VERB")
    _verb(below, "info", "show which Java, archive and settings drivers use; starts nothing")
    _verb(below, "prepare", "build the class archive now, so that the first driver starts quickly")


def _verb(verbs: Verbs[argparse.ArgumentParser], name: str, text: str) -> None:
    one = verbs.add_parser(name, help=text, description=text)
    one.set_defaults(command=_later(name))
    one.add_argument("--json", action="store_true", help="print one JSON object")


def _later(name: str) -> Callable[[argparse.Namespace, Settings], int]:
    """Loaded when it is called: no other verb looks for Java."""

    def command(arguments: argparse.Namespace, settings: Settings) -> int:
        found: Callable[[argparse.Namespace, Settings], int] = getattr(import_module("noetl.cli.spark.place"), name)
        return found(arguments, settings)

    return command
