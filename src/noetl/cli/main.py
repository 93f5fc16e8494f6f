"""`noetl`: the verbs and what they take.  Exit codes: 0 success, 1 the run failed, 2 usage or connection."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from noetl import __version__
from noetl.cli import bench, run, serve, show
from noetl.cli.text import fail
from noetl.core.errors import NoetlError
from noetl.settings import Settings, read_settings

Command = Callable[[argparse.Namespace, Settings], int]


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    try:
        settings = read_settings()
        _log_to_stderr(settings.log_level)
        command: Command = arguments.command
        return command(arguments, settings)
    except NoetlError as error:
        fail(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 2


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s %(event)s"))
    handler.addFilter(_named)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _named(record: logging.LogRecord) -> bool:
    """Every record has an `event`, so that one format serves ours and the libraries'.  Only where ours gave none:
    `logging` refuses to overwrite what a record already has, and that would be raised in the middle of our work."""
    record.event = f"{record.__dict__.get('event', '')} {record.__dict__.get('reason', '')}".strip()
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="noetl", description="Durable, event-sourced data pipelines.")
    parser.add_argument("--version", action="version", version=f"noetl {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    one = _verb(verbs, "run", run.run, "run a playbook and wait for its end")
    one.add_argument("file", help="a playbook file")
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a workload value")
    one.add_argument("--payload", metavar="JSON", help="workload values as a JSON object")
    one.add_argument("--json", action="store_true", help="print one JSON object: execution_id, status, result, error")

    one = _verb(verbs, "validate", show.validate, "check a playbook without running it")
    one.add_argument("file", help="a playbook file")

    one = _verb(verbs, "status", show.status, "show one execution")
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("--json", action="store_true")

    one = _verb(verbs, "list", show.list_executions, "list the newest executions")
    one.add_argument("--limit", type=int, default=20)
    one.add_argument("--json", action="store_true")

    one = _verb(verbs, "events", show.events, "show the events of one execution")
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("--json", action="store_true", help="one JSON object per line")

    one = _verb(verbs, "up", serve.up, "start a host in the background; it resumes all open executions")
    one.add_argument("--foreground", action="store_true", help="stay in this terminal")
    _verb(verbs, "down", serve.down, "stop the host and its Postgres")
    _verb(verbs, "migrate", serve.migrate, "bring the database of NOETL_POSTGRES_DSN to this release")

    one = _verb(verbs, "bench", bench.bench, "measure this machine: latency, chain, append")
    one.add_argument("names", nargs="*", metavar="NAME", help="latency, chain, append; all when none is given")
    one.add_argument("--json", action="store_true", help="one JSON object per benchmark")
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, help_text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(command=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
