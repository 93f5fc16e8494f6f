"""`noetl result`: the result of a step on the screen, in a pipe or in a file."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path
from typing import Any

from noetl.cli.client import Client, Refused
from noetl.cli.registry.asking import Verbs, asking, reaches_servers, within
from noetl.cli.text import fail, note, out
from noetl.core.errors import RequestInvalid

FORMATS = ("table", "json", "ndjson", "csv", "arrow", "parquet")
BINARY = frozenset(("arrow", "parquet"))
SCREEN_ROWS = 50
SCREEN_BYTES = 65_536
_SUFFIXES = {".jsonl": "ndjson", ".arrows": "arrow", ".pq": "parquet", ".txt": "table"}


def add_verb(verbs: Verbs[argparse.ArgumentParser]) -> None:
    text = "show the result of a step, or which steps have one"
    one = reaches_servers(verbs.add_parser("result", help=text, description=text))
    one.set_defaults(command=asking(_result))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("step", metavar="STEP", nargs="?", help="without one: the steps that have results")
    one.add_argument(
        "--format", choices=FORMATS, help="table on a terminal, json in a pipe, or what the name of the file says"
    )
    one.add_argument("--path", metavar="P", help="a part of the result, such as rows, pull.rows or results[3].data")
    one.add_argument("--offset", type=int, metavar="N", help="leave out so many rows")
    one.add_argument("--limit", type=int, metavar="N", help=f"so many rows; {SCREEN_ROWS} in a table on a terminal")
    one.add_argument("--columns", metavar="A,B", help="only these columns, in this order")
    one.add_argument("-o", "--output", metavar="FILE", help="write a file, whole or not at all; - is standard output")


def _result(arguments: argparse.Namespace, client: Client) -> int:
    if arguments.step is None:
        return _list(arguments, client)
    file = None if arguments.output in (None, "-") else _file(arguments.output)
    is_screen = file is None and arguments.output is None and sys.stdout.isatty()
    chosen = arguments.format or _by_name(file) or ("table" if is_screen else "json")
    if is_screen and chosen in BINARY:
        fail(f"{chosen} is not for a terminal: write it to a file with -o FILE, or into a pipe")
        return 2
    if is_screen and chosen == "table":
        return _screen(arguments, client)
    download = client.download(_place(arguments), **_query(arguments), format=chosen)
    if file is None:
        _print(download.pieces())
    else:
        size = _write(file, download.pieces())
        note(f"{file}: {size:,} bytes")
    return 0


def _place(arguments: argparse.Namespace) -> str:
    results = f"{within('/api/executions', arguments.execution_id)}/results"
    return results if arguments.step is None else within(results, arguments.step)


def _query(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("path", "offset", "limit", "columns")}


def _by_name(file: Path | None) -> str | None:
    """The format that the name of a file asks for."""
    suffix = "" if file is None else file.suffix.lower()
    return _SUFFIXES.get(suffix) or (suffix[1:] if suffix[1:] in FORMATS else None)


# --- where it goes ---------------------------------------------------------------------------------------


def _print(pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _file(name: str) -> Path:
    """The file of this name.  Raises RequestInvalid for what cannot be one, before anything is fetched."""
    if not name:
        raise RequestInvalid("--output: the name of the file is empty: name a file, or - for standard output")
    if name.endswith(os.sep) or os.path.isdir(name):
        raise RequestInvalid(f"{name} is a folder: name a file in it")
    return Path(name)


def _write(file: Path, pieces: Iterable[bytes]) -> int:
    """A file that is there when all of it is there.  Raises RequestInvalid when it cannot be written."""
    try:
        if _is_special(file):
            with file.open("wb", buffering=0) as target:
                return sum(_put(target, piece) for piece in pieces)
        # What a link names is replaced, and not the link.
        return _replace(Path(os.path.realpath(file)), pieces)
    except OSError as error:
        raise RequestInvalid(f"{file} cannot be written: {error.strerror or error}") from error


def _is_special(file: Path) -> bool:
    """Whether this is a device or a pipe: it takes bytes, and a file in its place would be something else."""
    try:
        return not stat.S_ISREG(file.stat().st_mode)
    except FileNotFoundError:
        return False


def _put(target: RawIOBase, piece: bytes) -> int:
    left = memoryview(piece)
    while left:
        left = left[target.write(left) or 0 :]
    return len(piece)


def _replace(file: Path, pieces: Iterable[bytes]) -> int:
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(6)}.part")
    size = 0
    try:
        with temporary.open("xb") as target:
            for piece in pieces:
                size += target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _screen(arguments: argparse.Namespace, client: Client) -> int:
    """As many rows as a person reads, and how to get the others."""
    query = _query(arguments)
    query["limit"] = SCREEN_ROWS if arguments.limit is None else arguments.limit
    try:
        download = client.download(_place(arguments), **query, format="table")
    except Refused as refused:
        if refused.body.get("code") != "result_not_tabular" or arguments.format is not None:
            raise
        return _value(arguments, client)
    _print(download.pieces())
    total = int(download.header("Noetl-Total-Rows") or 0)
    first = arguments.offset or 0
    count = min(max(total - first, 0), query["limit"])
    if count < total:
        note(f"{count:,} of {total:,} rows: more with --offset and --limit, all with --format csv -o FILE")
    else:
        note(f"{total:,} rows")
    return 0


def _value(arguments: argparse.Namespace, client: Client) -> int:
    """What has no rows: the beginning of its JSON."""
    shown = b""
    download = client.download(_place(arguments), path=arguments.path, format="json")
    for piece in download.pieces():
        shown += piece
        if len(shown) > SCREEN_BYTES:
            break
    if len(shown) <= SCREEN_BYTES:
        out(json.dumps(json.loads(shown), indent=2, ensure_ascii=False))
        return 0
    out(shown[:SCREEN_BYTES].decode("utf-8", "ignore"))
    note(f"the first {SCREEN_BYTES:,} bytes: all with --format json -o FILE, a part with --path")
    return 0


def _list(arguments: argparse.Namespace, client: Client) -> int:
    if arguments.format not in (None, "table", "json"):
        fail("the list of results is a table or json: name a STEP for anything else")
        return 2
    offset: int | None = 0
    found: list[dict[str, Any]] = []
    while offset is not None:
        page = client.request("GET", _place(arguments), offset=offset)
        found += page["results"]
        offset = page["next_offset"]
    if arguments.format == "json" or (arguments.format is None and not sys.stdout.isatty()):
        out(json.dumps(found))
        return 0
    if not found:
        note("no step has a result yet")
    for one in found:
        rows = "" if one["rows"] is None else f"{one['rows']:,} rows"
        columns = one["problem"] or ", ".join(one["columns"] or ())
        out(f"{one['status']:<6} {one['step']:<24} {one['bytes']:>14,} bytes  {rows:>16}  {columns}".rstrip())
    return 0
