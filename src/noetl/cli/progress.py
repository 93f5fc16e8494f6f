"""The view of a running execution: one line per step; on a terminal also a line about what runs now."""

from __future__ import annotations

import datetime
import json
import sys
from dataclasses import dataclass
from typing import Any

from noetl.cli.data.jobs import facts_text, intent_text, progress_text, text_of, verdict_text, verdicts_of
from noetl.cli.text import note, out, print_warnings


@dataclass(slots=True)
class _Loop:
    total: int
    started_at: str
    done: int = 0
    failed: int = 0


_SKIPPED = {"admission": "not admitted", "guard": "its `when` is false", "failing": "the execution is failing"}


def _milliseconds_between(start: str, end: str) -> float:
    passed = datetime.datetime.fromisoformat(end) - datetime.datetime.fromisoformat(start)
    return passed.total_seconds() * 1000


class Progress:
    def __init__(self, execution_id: str, *, file: str, is_quiet: bool) -> None:
        self._execution_id = execution_id
        self._file = file
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty() and not is_quiet
        self._running: dict[str, str] = {}
        self._loops: dict[str, _Loop] = {}
        self._unclaimed: set[str] = set()
        self._told: set[str] = set()

    @property
    def waits_for_worker(self) -> bool:
        """Whether something was given out and nobody has taken it yet."""
        return bool(self._unclaimed)

    def unserved(self, view: dict[str, Any]) -> None:
        """Say once what nobody will take.  Also when quiet: it would never end, and nobody would know why."""
        for one in view.get("unserved", ()):
            if one["message"] not in self._told:
                self._told.add(one["message"])
                self._clear()
                note(f"  ! {one['step']:<24} {'waits':>12}  {one['message']}")

    def begin(self, warnings: list[dict[str, Any]]) -> None:
        if self._is_quiet:
            return
        print_warnings(warnings, self._file)
        note(f"execution {self._execution_id} of {self._file}")

    def show(self, event: dict[str, Any]) -> None:
        kind, meta = event["event_type"], event["meta"]
        command = event.get("command_id", "")
        self._note_claim(kind, command or event.get("frame_id", ""))
        if self._is_quiet:
            return
        if kind.startswith("job."):
            self._job(kind, meta, event.get("stage_id") or command)
        elif kind == "command.claimed":
            attempt = meta["attempt"]
            self._running[command] = command if attempt == 1 else f"{command} (attempt {attempt})"
        elif kind in ("command.completed", "command.failed"):
            self._running.pop(command, None)
            self._finished(event, meta)
        elif kind == "step.decided" and meta["outcome"] == "skipped":
            self._clear()
            note(f"  - {meta['step']:<24} {'skipped':>12}  {_SKIPPED.get(meta['reason'], '')}".rstrip())
        elif kind == "task.waiting":
            self._running[command] = f"{command} (waits {meta['delay_seconds']:g} s)"
        elif kind == "child.started":
            self._running[command] = f"{command} (waits for {meta['path']})"
        elif "stage_id" in event:
            self._looped(event, meta)
        self._redraw()

    def _note_claim(self, kind: str, taken: str) -> None:
        if kind in ("command.issued", "frame.dispatched"):
            self._unclaimed.add(taken)
        elif kind in ("command.claimed", "frame.started") or kind.endswith((".completed", ".failed", ".cancelled")):
            self._unclaimed.discard(taken)

    def _job(self, kind: str, meta: dict[str, Any], running: str) -> None:
        """A job is one line that changes, and once a line that stays: where it can be looked at."""
        if kind == "job.progressed":
            self._running[running] = f"{running} ({progress_text(meta)})"
            return
        self._running[running] = f"{running} ({text_of(meta, 'application') or 'job'})"
        ui = text_of(meta, "ui")
        if ui and ui not in self._told:
            self._told.add(ui)
            self._clear()
            note(f"  · {meta['step']:<24} {'':>12}  {intent_text(meta)}")

    def _looped(self, event: dict[str, Any], meta: dict[str, Any]) -> None:
        """A loop is one line, which counts: nobody reads thousands of rows."""
        kind, stage = event["event_type"], event["stage_id"]
        if kind == "loop.started":
            self._loops[stage] = _Loop(meta["total"], event["event_time"])
        loop = self._loops.get(stage)
        if loop is None:
            return
        if kind == "execution.seeded":
            kept = (part["ranges"] for one in meta["outputs"] for part in one.get("parts", ()))
            loop.done += sum(end - first for ranges in kept for first, end in ranges)
            loop.done += sum(one["rows"] for one in meta["outputs"] if one["reference"] is not None)
        if kind in ("frame.committed", "frame.failed"):
            loop.done += meta["outcomes"]["success"] + meta["outcomes"]["failed"]
            loop.failed += meta["outcomes"]["failed"]
        if kind != "loop.done":
            failed = f", {loop.failed} failed" if loop.failed else ""
            self._running[stage] = f"{stage} ({loop.done:,} of {loop.total:,}{failed})"
            return
        self._running.pop(stage, None)
        mark = "✓" if meta["status"] == "ok" else "✗"
        milliseconds = _milliseconds_between(loop.started_at, event["event_time"])
        line = f"  {mark} {meta['step']:<24} {milliseconds:>9.1f} ms  {loop.done:,} of {loop.total:,} items"
        if loop.failed:
            line += f", {loop.failed:,} failed"
        self._clear()
        note(line)

    def _finished(self, event: dict[str, Any], meta: dict[str, Any]) -> None:
        if any(mark in event.get("command_id", "") for mark in ("/eval/", "/gather/", "/seal")):
            return
        is_ok = event["event_type"] == "command.completed"
        mark = "✓" if is_ok else "✗"
        line = f"  {mark} {meta['step']:<24} {meta.get('duration_ms', 0):>9.1f} ms"
        if not is_ok:
            error = event["result"]["context"].get("error") or {}
            line += f"  {error.get('kind')}: {error.get('message')}"
        self._clear()
        note(line)
        for job in meta.get("jobs", ()):
            note(f"      {facts_text(job)}")
            for verdict in verdicts_of(job):
                if not verdict.get("met"):
                    note(f"      {verdict_text(verdict)}")

    def _redraw(self) -> None:
        if self._is_terminal and self._running:
            names = ", ".join(list(self._running.values())[:4])
            more = len(self._running) - 4
            text = f"  … {names}" + (f" and {more} more" if more > 0 else "")
            sys.stderr.write(f"\r\x1b[2K{text[:120]}")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")

    def end(self) -> None:
        self._clear()

    def result(self, final: dict[str, Any]) -> None:
        note(f"{final['status']} {final['execution_id']}")
        if final["error"]:
            error = final["error"]
            # What ends all of it, as a cancel does, is of no step.
            where = f"step {error['step']!r} failed: " if error.get("step") else ""
            note(f"  {where}{error.get('kind')}: {error.get('message')}")
            note(f"  see: noetl events {final['execution_id']}")
        elif final["result"] is not None:
            out(json.dumps(final["result"], indent=2, ensure_ascii=False))
