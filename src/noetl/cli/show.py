"""`noetl status`, `list`, `events`: looking at things."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

from noetl.cli.attach import attach
from noetl.cli.client import Client, Refused
from noetl.cli.data.jobs import facts_text, finished_lines, intent_text, progress_text, running_lines, stage_text
from noetl.cli.text import fail, note, out, print_warnings
from noetl.settings import Settings


def _reading(settings: Settings, read: Callable[[Client], int]) -> int:
    """Read through the running host, or through one that only reads and resumes nothing."""
    attachment = attach(settings, resume=False)
    try:
        return read(attachment.client)
    except Refused as refused:
        fail(str(refused))
        return 2
    finally:
        attachment.leave()


def status(arguments: argparse.Namespace, settings: Settings) -> int:
    def read(client: Client) -> int:
        view = client.execution(arguments.execution_id)
        if arguments.json:
            out(json.dumps(view))
            return 0
        out(f"execution  {view['execution_id']}")
        catalog = view["catalog"]
        out(f"playbook   {view['path']}" + (f" version {catalog['version']}" if catalog else ""))
        out(f"status     {view['status']}")
        if view["retry_of"]:
            out(f"retry of   {view['retry_of']}")
        out(f"started    {view['started_at']}")
        if view["ended_at"]:
            out(f"ended      {view['ended_at']}")
        for name, step in view["steps"].items():
            runs = f" ({step['runs']} runs)" if step["runs"] > 1 else ""
            loop = step.get("loop")
            counted = f"  {loop['done']:,} of {loop['total']:,} items, {loop['failed']:,} failed" if loop else ""
            out(f"  {step['status']:<10} {name}{runs}{counted}")
            for line in (*_profile_lines(loop or {}), *_job_lines(step)):
                out(f"             {line}")
        left_out = view["left_out"].get("steps")
        if left_out:
            out(f"  and {left_out:,} steps more, which ended before these")
        if view["quarantine"]:
            out(f"quarantine {_quarantine(view)}")
        for one in view["unserved"]:
            out(f"waiting    step {one['step']!r}: {one['message']}")
        print_warnings(view["warnings"], view["path"])
        if view["error"]:
            error = view["error"]
            where = f"step {error['step']!r}: " if error.get("step") else ""
            out(f"error      {where}{error.get('message')}")
        return 0

    return _reading(settings, read)


def _quarantine(view: dict[str, Any]) -> str:
    """What is shown is the last that could be made of it."""
    found = view["quarantine"]
    return f"not followed behind position {found['position'] - 1}: {found['reason']} ({found['event_type']})"


def _profile_lines(loop: dict[str, Any]) -> Iterator[str]:
    """What failed in a loop, and what its rows cost, task by task."""
    if loop.get("dead_letter"):
        yield f"dead letter {loop['dead_letter']['uri']}"
    profile = loop.get("profile")
    if not profile or not profile["tasks"]:
        return
    yield f"{loop['frames']['given_out']:,} frames, {profile['wall_ms']:,.0f} ms"
    for name, cost in profile["tasks"].items():
        failed = f", {cost['failed']:,} failed" if cost["failed"] else ""
        each = f"{cost['render_ms']:,.0f} ms rendering, {cost['tool_ms']:,.0f} ms tool"
        if cost.get("limit_ms"):
            each += f", {cost['limit_ms']:,.0f} ms waiting for the limit"
        yield f"{name} ({cost['kind']}): {cost['calls']:,} calls{failed}, {each}"


def _job_lines(step: dict[str, Any]) -> list[str]:
    now = datetime.datetime.now(datetime.UTC)
    running = [line for job in step.get("running_jobs", ()) for line in running_lines(job, now)]
    return running + [line for job in step.get("jobs", ()) for line in finished_lines(job)]


def list_executions(arguments: argparse.Namespace, settings: Settings) -> int:
    def read(client: Client) -> int:
        rows = client.list(limit=arguments.limit)
        if arguments.json:
            out(json.dumps(rows))
            return 0
        if not rows:
            note("no executions yet: noetl run examples/hello_world.yaml")
        for row in rows:
            mark = f"  retry of {row['retry_of']}" if row["retry_of"] else ""
            mark += "  (quarantined)" if row["quarantine"] else ""
            out(f"{row['execution_id']:<20} {row['status']:<10} {row['started_at'][:19]}Z  {row['path']}{mark}")
        return 0

    return _reading(settings, read)


def events(arguments: argparse.Namespace, settings: Settings) -> int:
    def read(client: Client) -> int:
        position, first = 0, None
        while True:
            page = client.events(arguments.execution_id, after_position=position)
            if not page:
                return 0
            for event in page:
                first = first or event["event_time"]
                out(json.dumps(event) if arguments.json else _line(event))
            position = page[-1]["position"]

    return _reading(settings, read)


_LOOP_DETAILS = {
    "stage.opened": "{stage_kind} over a {source}",
    "loop.started": "{total} items",
    "loop.fanout.started": "{total_shards} shards",
    "loop.shard.done": "shard {shard_index}, {rows} rows from {first}",
    "loop.shard.failed": "shard {shard_index}, {rows} rows from {first}",
    "loop.fanin.completed": "{fanin[status]}: {fanin[succeeded]} of {fanin[total]} shards",
    "frame.dispatched": "{rows} rows from {first}, {concurrency} at a time",
    "frame.heartbeat": "rows {ranges} are durable",
    "frame.abandoned": "attempt {attempt} lost, {skipped} rows need not run again",
    "frame.committed": "{outcomes[success]} ok, {outcomes[failed]} failed",
    "loop.done": "{done} of {total} done, {failed} failed",
    "stage.closed": "{status}",
    "child.started": "execution {child_execution_id} of {path}",
    "child.terminal": "execution {child_execution_id} {status}",
}


# More would be no line any more; `--json` has all of them.
_JOBS_SHOWN_MAX = 3


def _decision(meta: dict[str, Any]) -> str:
    leads = f"→ {', '.join(meta['targets'])}" if meta["targets"] else ""
    if meta["outcome"] == "skipped":
        return f"skipped ({meta['reason']}) {leads}".rstrip()
    return leads or str(meta["outcome"])


def _job(event_type: str, meta: dict[str, Any]) -> str:
    if event_type == "job.intended":
        return f"attempt {meta['attempt']}, {intent_text(meta)}"
    return f"job {meta['job']}: {progress_text(meta)}{stage_text(meta)}"


def _line(event: dict[str, Any]) -> str:
    meta = event["meta"]
    about = event.get("command_id") or event.get("frame_id") or event.get("stage_id") or meta.get("step") or ""
    detail = ""
    if event["event_type"] == "step.decided":
        about = f"{meta['step']}#{meta['run']}"
        detail = _decision(meta)
    elif event["event_type"] in ("command.claimed", "frame.started"):
        detail = f"attempt {meta['attempt']}"
    elif event["event_type"] in ("job.intended", "job.progressed"):
        detail = _job(event["event_type"], meta)
    elif event["event_type"] in _LOOP_DETAILS:
        detail = _LOOP_DETAILS[event["event_type"]].format(**meta)
    elif event.get("result"):
        error = event["result"]["context"].get("error")
        reference = event["result"]["reference"]
        detail = f"{error['kind']}: {error['message']}" if error else ""
        if reference and not error:
            detail = f"{reference['bytes']} bytes, sha256 {reference['sha256'][:12]}"
    if "jobs" in meta and event.get("result"):
        costs = "; ".join(facts_text(job) for job in meta["jobs"][:_JOBS_SHOWN_MAX])
        detail = f"{detail}  {costs}".strip()
    written = ", ".join(".".join(item["path"]) for item in event.get("writes") or ())
    if written:
        detail += f"  writes {written}"
    time = event["event_time"][11:23]
    return f"{event['stream_version']:>5}  {time}  {event['event_type']:<21} {about:<24} {detail}".rstrip()
