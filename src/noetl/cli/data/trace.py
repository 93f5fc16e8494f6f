"""`noetl trace`: where the result of a step comes from, as a tree."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from noetl.cli.client import Client
from noetl.cli.registry.asking import Verbs, asking, reaches_servers, within
from noetl.cli.text import note, out

_DIGEST_CHARS = 12
_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def add_verb(verbs: Verbs[argparse.ArgumentParser]) -> None:
    text = "show where the result of a step comes from"
    one = reaches_servers(verbs.add_parser("trace", help=text, description=text))
    one.set_defaults(command=asking(_trace))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("step", metavar="STEP")
    one.add_argument("--run", type=int, metavar="N", help="that run of the step, not the last one")
    one.add_argument("--json", action="store_true")


def _trace(arguments: argparse.Namespace, client: Client) -> int:
    execution = within("/api/executions", arguments.execution_id)
    view = client.request("GET", within(f"{execution}/trace", arguments.step), run=arguments.run)
    if arguments.json:
        out(json.dumps(view))
        return 0
    for line in _Tree(view).lines():
        out(line)
    if view["is_cut"]:
        note("there is more than this: the trace was too deep or too wide")
    return 0


class _Tree:
    """A result that is reached in several ways is shown where it is met first; elsewhere its name must do."""

    def __init__(self, view: dict[str, Any]) -> None:
        self._view = view
        self._nodes: dict[str, dict[str, Any]] = {node["ref_id"]: node for node in view["results"]}
        self._frames = {(one["execution_id"], one["stage_id"]): one for one in view["frames"]}
        self._shown: set[str] = set()

    def lines(self) -> Iterator[str]:
        view = self._view
        if view["ref_id"] in self._nodes:
            yield from self._result(self._nodes[view["ref_id"]], "", "", "")
            return
        error = view["error"] or {}
        yield f"{view['step']}#{view['run']}  {view['status']}  {error.get('kind', '')}: {error.get('message', '')}"
        yield from self._below(view, "")

    def _result(self, node: dict[str, Any], head: str, indent: str, why: str) -> Iterator[str]:
        """`head` stands before the first line, `indent` before all others."""
        line = f"{head}{why}{self._name(node)}"
        if node["ref_id"] in self._shown:
            yield f"{line}  (see above)"
            return
        self._shown.add(node["ref_id"])
        yield f"{line}  {_facts(node)}"
        yield from self._below(node, indent)

    def _below(self, node: dict[str, Any], indent: str) -> Iterator[str]:
        """What belongs to a result, and then what it comes from."""
        tasks = (line for entry in node.get("tasks", ()) for line in _task(entry))
        parts: list[Any] = [*tasks, *self._of_loop(node)]
        parts += self._before(node)
        for number, part in enumerate(parts):
            is_last = number + 1 == len(parts)
            head, below = indent + ("└─ " if is_last else "├─ "), indent + ("   " if is_last else "│  ")
            if isinstance(part, str):
                yield f"{head}{part}"
            else:
                why, before = part
                yield from self._result(before, head, below, why)

    def _of_loop(self, node: dict[str, Any]) -> Iterator[str]:
        stage = (node.get("command_id") or "").removesuffix("/seal")
        frames = self._frames.get((node["execution_id"], stage)) if node.get("role") == "loop" else None
        if frames is None:
            return
        for frame in frames["shown"]:
            yield f"frame {frame['frame_id']}  {_facts(frame)}"
        left = frames["total"] - len(frames["shown"])
        if left:
            yield f"… {left:,} more frames"

    def _before(self, node: dict[str, Any]) -> Iterator[Any]:
        """The results that were read, and the one that led here, each once.  What led to a loop's result is its last
        frame, which is shown with the others: what led to that comes in its place."""
        last = self._nodes.get(node["parent_ref"] or "")
        if node.get("role") == "loop" and last is not None and last["role"] == "frame":
            node = {**last, "inputs": node["inputs"] + last["inputs"]}
        reasons: dict[str, str] = {one["ref_id"]: "read " for one in node["inputs"] if "ref_id" in one}
        parent = node["parent_ref"]
        if parent is not None:
            reasons[parent] = "after, and read " if parent in reasons else "after "
        for ref_id, why in reasons.items():
            known = self._nodes.get(ref_id)
            yield (why, known) if known is not None else f"{why}result {ref_id}, which is not shown"
        for one in node["inputs"]:
            if "sha256" in one:
                yield f"read payload {one['sha256'][:_DIGEST_CHARS]}"
        if node.get("credentials"):
            yield f"used credential {', '.join(node['credentials'])}"

    def _name(self, node: dict[str, Any]) -> str:
        role = node["role"]
        name = {
            "step": node["command_id"],
            "loop": f"{str(node['command_id']).removesuffix('/seal')} (loop)",
            "frame": f"frame {node['frame_id']}",
            "child": f"child of {node['step']}" + (f", task {node['task']}" if node["task"] else ""),
            "execution": f"execution {node['execution_id']}",
        }.get(role, f"{role} {node['command_id']}")
        is_other = node["execution_id"] != self._view["execution_id"] and role != "execution"
        return f"{name} of execution {node['execution_id']}" if is_other else str(name)


def _facts(node: dict[str, Any]) -> str:
    facts = [
        node["status"],
        f"{node['row_count']:,} rows" if node["row_count"] is not None else "",
        _size(node["bytes"]),
        node["media_type"] or "",
        node["store"] or "",
        node["sha256"][:_DIGEST_CHARS],
        node["created_at"][:23].replace("T", " ") + "Z",
    ]
    return "  ".join(fact for fact in facts if fact)


def _task(entry: dict[str, Any]) -> Iterator[str]:
    """What a task did, and of a result in several parts where each of them is."""
    facts = [f"task {entry['task']}", f"error {entry['error']}" if entry.get("error") else "ok", f"{entry['ms']:g} ms"]
    if entry.get("attempt"):
        facts.append(f"attempt {entry['attempt']}")
    parts = entry.get("parts") or ()
    stored = entry.get("stored")
    if stored and not parts:
        facts += _stored(stored)
    yield "  ".join(fact for fact in facts if fact)
    for part in parts:
        yield "  ".join(fact for fact in [f"  gave {part['name']}", *_stored(part)] if fact)
    if entry.get("parts_more"):
        yield f"  … {entry['parts_more']:,} more parts"


def _stored(stored: dict[str, Any]) -> list[str]:
    rows = f"{stored['row_count']:,} rows" if stored.get("row_count") is not None else ""
    digest = (stored.get("sha256") or "")[:_DIGEST_CHARS]
    return [rows, _size(stored.get("bytes")), stored.get("media_type") or "", stored.get("store") or "", digest]


def _size(size: int | None) -> str:
    if size is None:
        return ""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
