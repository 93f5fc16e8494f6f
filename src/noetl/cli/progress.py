"""The view of a running execution: one line per step; on a terminal also a line about what runs now."""

from __future__ import annotations

import json
import sys
from typing import Any

from noetl.cli.text import note, out


class Progress:
    def __init__(self, execution_id: str, *, file: str, is_quiet: bool) -> None:
        self._execution_id = execution_id
        self._file = file
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty() and not is_quiet
        self._running: dict[str, str] = {}
        self._failed: dict[str, str] = {}

    def begin(self, warnings: list[dict[str, Any]]) -> None:
        if self._is_quiet:
            return
        for warning in warnings:
            note(f"warning: {warning['message']}")
        note(f"execution {self._execution_id} of {self._file}")

    def show(self, event: dict[str, Any]) -> None:
        if self._is_quiet:
            return
        kind, meta = event["event_type"], event["meta"]
        command = event.get("command_id", "")
        if kind == "command.claimed":
            attempt = meta["attempt"]
            self._running[command] = command if attempt == 1 else f"{command} (attempt {attempt})"
        elif kind in ("command.completed", "command.failed"):
            self._running.pop(command, None)
            self._finished(event, meta)
        elif kind == "task.waiting":
            self._running[command] = f"{command} (waits {meta['delay_seconds']:g} s)"
        self._redraw()

    def _finished(self, event: dict[str, Any], meta: dict[str, Any]) -> None:
        if "/eval/" in event.get("command_id", ""):
            return
        is_ok = event["event_type"] == "command.completed"
        mark = "✓" if is_ok else "✗"
        line = f"  {mark} {meta['step']:<24} {meta.get('duration_ms', 0):>9.1f} ms"
        if not is_ok:
            error = event["result"]["context"].get("error") or {}
            line += f"  {error.get('kind')}: {error.get('message')}"
        self._clear()
        note(line)

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
            note(f"  step {error.get('step')!r} failed: {error.get('kind')}: {error.get('message')}")
            note(f"  see: noetl events {final['execution_id']}")
        elif final["result"] is not None:
            out(json.dumps(final["result"], indent=2, ensure_ascii=False))
