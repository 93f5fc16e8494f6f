"""`noetl`: the verbs and what they take.  Exit codes: 0 success, 1 the run failed, 2 usage or connection."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from noetl import __version__
from noetl.cli.data import items, result, trace
from noetl.cli.operating.logs import log_to_stderr
from noetl.cli.registry import catalog, credentials
from noetl.cli.registry.asking import reaches_servers
from noetl.cli.spark import verbs as spark_verbs
from noetl.cli.text import fail
from noetl.core.errors import NoetlError, SettingsInvalid
from noetl.core.limits import POOL_CHARS_MAX, SESSION_SLOTS_MAX
from noetl.settings import Settings, read_settings, server_urls

DEMO_PATIENTS_MAX = 10_000

# Processes that run on their own.
_SERVING = frozenset(("up", "server", "worker", "projector"))

Command = Callable[[argparse.Namespace, Settings], int]


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    try:
        settings = _at(arguments, read_settings())
        log_to_stderr(settings, serves=getattr(arguments, "serves", False))
        command: Command = arguments.command
        return command(arguments, settings)
    except NoetlError as error:
        fail(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="noetl", description="Durable, event-sourced data pipelines.")
    parser.add_argument("--version", action="version", version=f"noetl {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    one = reaches_servers(_verb(verbs, "run", _later("run", "run"), "run a playbook and wait for its end"))
    one.add_argument("file", metavar="FILE|PATH", help="a playbook file, or a path of the catalog")
    one.add_argument("--version", type=int, metavar="N", help="that version of the catalog, not the newest")
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a workload value")
    one.add_argument("--payload", metavar="JSON", help="workload values as a JSON object")
    one.add_argument(
        "--json", action="store_true", help="print one JSON object: execution_id, status, result, error, warnings"
    )

    one = _verb(verbs, "demo", _later("demo.command", "demo"), "run a whole pipeline on this machine and look at it")
    one.add_argument(
        "--patients", type=_patients, metavar="N", default=120, help="how many patients to fetch, 120 by default"
    )

    one = _verb(verbs, "validate", _later("registry.validate", "validate"), "check playbooks without running them")
    reaches_servers(one).add_argument("files", nargs="+", metavar="PATH", help="a playbook file, or a folder with some")
    one.add_argument("--json", action="store_true", help="one JSON object per playbook")

    one = reaches_servers(_verb(verbs, "status", _later("show", "status"), "show one execution"))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("--json", action="store_true")

    one = reaches_servers(_verb(verbs, "list", _later("show", "list_executions"), "list the newest executions"))
    one.add_argument("--limit", type=int, default=20)
    one.add_argument("--json", action="store_true")

    one = reaches_servers(_verb(verbs, "events", _later("show", "events"), "show the events of one execution"))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("--json", action="store_true", help="one JSON object per line")

    one = reaches_servers(_verb(verbs, "cancel", _later("cancel", "cancel"), "end an execution before its time"))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("--reason", metavar="TEXT", help="recorded with the request")

    _add_data_verbs(verbs)
    credentials.add_verbs(verbs)
    catalog.add_verbs(verbs)
    spark_verbs.add_verbs(verbs)

    one = _verb(verbs, "up", _later("serve", "up"), "start a host in the background; it resumes all open executions")
    one.add_argument("--foreground", action="store_true", help="stay in this terminal")
    one.add_argument("--tcp", action="store_true", help="listen also on NOETL_HOST:NOETL_PORT, with a token")
    one = _verb(verbs, "server", _later("serve", "server"), "be a server on NOETL_HOST:NOETL_PORT; workers do the work")
    one.add_argument("--with-worker", action="store_true", help="also run commands in this process")
    one.add_argument("--no-projector", action="store_true", help="leave projections to `noetl projector`")
    _verb(verbs, "projector", _later("serve", "projector"), "keep the projections of NOETL_POSTGRES_DSN")
    one = _verb(verbs, "worker", _later("serve", "worker"), "be a worker of a server; needs no database")
    one.add_argument("--server", metavar="URL", help="the server; NOETL_SERVER_URL, default http://127.0.0.1:8082")
    one.add_argument(
        "--slots",
        type=_slots,
        metavar="N",
        help="commands at the same time; NOETL_WORKER_SLOTS, in pool spark NOETL_SPARK_JOBS_MAX",
    )
    one.add_argument("--pool", type=_pool, metavar="NAME", help="whose commands to take: spark; NOETL_WORKER_POOL")
    one.add_argument("--kinds", metavar="KIND,…", help="take only commands with these kinds of tasks")
    _verb(verbs, "down", _later("serve", "down"), "stop the host and its Postgres")
    _verb(verbs, "migrate", _later("serve", "migrate"), "bring the database of NOETL_POSTGRES_DSN to this release")

    _add_operator_verbs(verbs)
    return parser


def _add_data_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What an execution left behind, and what is to be done again."""
    one = _verb(verbs, "retry", _later("data.retry", "retry"), "run failed items of an execution again, in a new one")
    reaches_servers(one).add_argument("execution_id", metavar="ID")
    one.add_argument("--failed-items", action="store_true", help="items of loops that failed or never ran")
    one.add_argument("--step", metavar="STEP", help="only those of this loop")
    one.add_argument("--detach", action="store_true", help="print the new id and do not wait")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    result.add_verb(verbs)
    trace.add_verb(verbs)
    items.add_verb(verbs)

    one = reaches_servers(_verb(verbs, "logs", _later("data.logs", "logs"), "show what tasks printed and tools said"))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("--step", metavar="STEP", help="only of this step")
    one.add_argument("-f", "--follow", action="store_true", help="go on until the execution has ended")
    one.add_argument("--json", action="store_true", help="one JSON object per line")

    one = _verb(verbs, "gc", _later("data.gc", "gc"), "delete payloads that nothing names any more")
    one.add_argument("--dry-run", action="store_true", help="only tell what would go")
    one.add_argument("--grace", type=float, metavar="HOURS", help="how long they stay; NOETL_GC_GRACE_HOURS, 24")
    one.add_argument("--forget-missing", action="store_true", help="take payloads that are named and gone for lost")
    one.add_argument("--json", action="store_true", help="print one JSON object")


def _add_operator_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """How well it goes."""
    one = reaches_servers(_verb(verbs, "doctor", _later("operating.doctor", "doctor"), "tell what is wrong, and where"))
    one.add_argument("--fix", action="store_true", help="do what can be done about it; a local host resumes everything")
    one.add_argument("--json", action="store_true", help="print one JSON object: fixed, findings")

    one = reaches_servers(_verb(verbs, "limits", _later("operating.limits", "limits"), "show shared limits in use"))
    one.add_argument("--json", action="store_true", help="print one JSON object: limits")

    one = _verb(verbs, "bench", _later("bench", "bench"), "measure this machine")
    names = "latency, chain, append, map, http_map, loop, compile, data, spark, control, limits; or all"
    one.add_argument("names", nargs="*", metavar="NAME", help=names)
    one.add_argument("--json", action="store_true", help="one JSON object per benchmark")
    one.add_argument("--remote", action="store_true", help="with server and worker as processes: chain, map")


def _slots(text: str) -> int:
    number = int(text)
    if not 1 <= number <= SESSION_SLOTS_MAX:
        raise ValueError(text)
    return number


def _pool(text: str) -> str:
    if not 1 <= len(text) <= POOL_CHARS_MAX or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a pool is 1 to {POOL_CHARS_MAX} printable characters, such as spark")
    return text


def _patients(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:10]) <= DEMO_PATIENTS_MAX:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to {DEMO_PATIENTS_MAX:,}, not {text[:40]!r}")
    return int(text)


def _later(module: str, name: str) -> Command:
    """A command whose module is loaded when it is called: looking at a run needs no engine and no web server."""

    def command(arguments: argparse.Namespace, settings: Settings) -> int:
        found: Command = getattr(import_module(f"noetl.cli.{module}"), name)
        return found(arguments, settings)

    return command


def _at(arguments: argparse.Namespace, settings: Settings) -> Settings:
    """The settings with what the command line says about where to run."""
    runtime, servers = getattr(arguments, "runtime", None), server_urls(getattr(arguments, "server", None), "--server")
    if runtime == "local":
        if servers:
            raise SettingsInvalid("--runtime local uses the engine of this home and no --server")
        return replace(settings, server_url=None, server_urls=())
    urls = servers or settings.server_urls
    if runtime == "distributed" and not urls:
        urls = (f"http://127.0.0.1:{settings.port}",)
    return replace(settings, server_url=urls[0] if urls else None, server_urls=urls)


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, help_text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(command=command, serves=name in _SERVING)
    return parser


if __name__ == "__main__":
    sys.exit(main())
