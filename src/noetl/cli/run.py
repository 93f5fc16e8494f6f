"""`noetl run`: submit a playbook and stay until it has ended."""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from noetl.cli.attach import Attachment, attach
from noetl.cli.client import Refused
from noetl.cli.progress import Progress
from noetl.cli.registry.files import SUFFIXES, read_playbook, read_scripts
from noetl.cli.text import fail, note, print_problem
from noetl.core.errors import HostUnavailable
from noetl.settings import Settings

LOST_HOST_TRIES_MAX = 20
LOST_SERVER_SECONDS = 60.0
EVENTS_WAIT_SECONDS = 10.0
# What was given out is taken at once, unless nobody can take it.
TAKEN_SECONDS = 1.0
HTTP_UNAVAILABLE = 503
HTTP_NOT_FOUND = 404
A = TypeVar("A")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    payload = read_payload(arguments.payload, arguments.set)
    playbook = wanted_playbook(arguments.file, arguments.version)
    if playbook is None or payload is None:
        return 2
    stay = Stay(settings, is_json=arguments.json)
    try:
        return stay.start({**playbook, "payload": payload}, name=arguments.file)
    except KeyboardInterrupt:
        stay.say_how_to_go_on()
        return 130
    finally:
        stay.leave()


def wanted_playbook(name: str, version: int | None) -> dict[str, Any] | None:
    """What to run, as the API takes it: a file with its scripts, or a path of the catalog when no file is called so.
    None after saying what is wrong."""
    path = Path(name)
    is_file = version is None and (path.suffix in SUFFIXES or (path.exists() and not path.is_dir()))
    if not is_file:
        return {"path": name, "version": version}
    text = read_playbook(name)
    scripts = read_scripts(name, text) if text is not None else None
    if text is None or scripts is None:
        return None
    return {"playbook": text, "file": name, "scripts": scripts}


class Stay:
    """One `run`: a client that becomes the host when there is none, also in the middle."""

    def __init__(self, settings: Settings, *, is_json: bool) -> None:
        self._settings = settings
        self._is_json = is_json
        self._attachment: Attachment | None = None
        self._execution_id: str | None = None

    @property
    def home(self) -> Path:
        return self._settings.home

    def run(self, text: str, file: str, payload: dict[str, Any]) -> int:
        return self.start({"playbook": text, "file": file, "payload": payload}, name=file)

    def start(self, body: dict[str, Any], *, name: str) -> int:
        # The key makes a repeated submission the same execution when the host was lost with the answer.
        key = secrets.token_hex(16)
        return self.follow(lambda a: a.client.submit(body, idempotency_key=key), body, name=name)

    def follow(self, submit: Callable[[Attachment], dict[str, Any]], body: dict[str, Any], *, name: str) -> int:
        """Submit, and stay until what was started has ended."""
        try:
            started = self._asking(submit)
        except Refused as refused:
            print_problem(refused.body, is_json=self._is_json)
            if refused.status == HTTP_NOT_FOUND and "path" in body:
                note(
                    f"there is no file {name!r} either" if not Path(name).exists() else f"{name!r} is no playbook file"
                )
            return 2
        self._execution_id = started["execution_id"]
        progress = Progress(self._execution_id, file=name, is_quiet=self._is_json)
        progress.begin(started.get("warnings", []))
        try:
            final = self._follow(progress)
        finally:
            progress.end()
        self._wait_for_visitors()
        return self.show(final, progress)

    def _follow(self, progress: Progress) -> dict[str, Any]:
        position = 0
        while True:
            wait = TAKEN_SECONDS if progress.waits_for_worker else EVENTS_WAIT_SECONDS
            events = self._asking(partial(self._events_after, position, wait))
            if not events:
                progress.unserved(self._asking(lambda a: a.client.execution(str(self._execution_id))))
            for event in events:
                position = event["position"]
                progress.show(event)
            if any(event["transition_key"] == "execution.terminal" for event in events):
                return self._ended()

    def _ended(self) -> dict[str, Any]:
        """What is shown of an execution whose last event was seen: that is projected a moment later."""
        while True:
            view = self._asking(lambda a: a.client.execution(str(self._execution_id), wait=True))
            if view["status"] != "RUNNING":
                return view

    def _events_after(self, position: int, wait_s: float, attachment: Attachment) -> list[dict[str, Any]]:
        return attachment.client.events(str(self._execution_id), after_position=position, wait_s=wait_s)

    def _asking(self, ask: Callable[[Attachment], A]) -> A:
        """Ask the host; when it is lost, find or become another one and ask again."""
        for _ in range(LOST_HOST_TRIES_MAX):
            if self._attachment is None:
                # A server that was lost in the middle may be on its way back.
                patience = LOST_SERVER_SECONDS if self._execution_id is not None else 0.0
                self._attachment = attach(self._settings, patience_seconds=patience)
            try:
                return ask(self._attachment)
            except HostUnavailable:
                self.leave()
            except Refused as refused:
                if refused.status != HTTP_UNAVAILABLE:
                    raise
                # The host lives: it has too much to do, or waits for its database.  Not everybody at once again.
                time.sleep(refused.retry_seconds * (1 + secrets.randbelow(500) / 1000))
        raise HostUnavailable("the host was lost, or without its database, again and again: see its log in NOETL_HOME")

    def _wait_for_visitors(self) -> None:
        """A host does not leave while others wait for their runs."""
        host = self._attachment.host if self._attachment else None
        while host is not None and host.is_waited_for and not host.wait(0.05):
            pass

    def show(self, final: dict[str, Any], progress: Progress) -> int:
        if self._is_json:
            print(json.dumps({key: final[key] for key in ("execution_id", "status", "result", "error", "warnings")}))
        else:
            progress.result(final)
        return 0 if final["status"] == "COMPLETED" else 1

    def say_how_to_go_on(self) -> None:
        if self._execution_id is None:
            note("interrupted before anything was submitted")
            return
        hosting = self._attachment is not None and self._attachment.host is not None
        note(f"execution {self._execution_id} stays open; nothing that was recorded is lost")
        note("go on with: noetl up" if hosting else "it goes on in the running host")
        note(f"look at it with: noetl status {self._execution_id}")

    def leave(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.leave()


def read_payload(payload: str | None, pairs: list[str]) -> dict[str, Any] | None:
    """`--payload` with `--set key=value` on top; values are JSON where they parse as JSON, else text."""
    result: dict[str, Any] = {}
    if payload is not None:
        try:
            loaded = json.loads(payload)
        except ValueError as error:
            fail(f"--payload is not JSON: {error}")
            return None
        if not isinstance(loaded, dict):
            fail("--payload must be a JSON object")
            return None
        result = loaded
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            fail(f"--set needs key=value, not {pair!r}")
            return None
        _put(result, key.split("."), _value(text))
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _put(target: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        inner = target.get(key)
        if not isinstance(inner, dict):
            inner = target[key] = {}
        target = inner
    target[path[-1]] = value
