"""`noetl logs`: what tasks printed and tools said, once or while it grows."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any
from urllib.parse import quote

from noetl.cli.attach import Attachment, attach
from noetl.cli.client import Refused
from noetl.cli.text import fail, note
from noetl.core.errors import HostUnavailable
from noetl.core.logs.shown import shown
from noetl.settings import Settings

# A server that was restarted is back after so long, or does not come back.
LOST_SERVER_SECONDS = 30.0
AGAIN_SECONDS = 0.2
HTTP_UNAVAILABLE = 503
INTERRUPTED = 130


def logs(arguments: argparse.Namespace, settings: Settings) -> int:
    tail = _Tail(arguments, settings)
    try:
        return tail.show()
    except Refused as refused:
        fail(str(refused))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        tail.leave()


class _Tail:
    """A reader that finds its server again after it was lost: the place in the log is the client's."""

    def __init__(self, arguments: argparse.Namespace, settings: Settings) -> None:
        self._path = f"/api/executions/{quote(arguments.execution_id, safe='')}/logs"
        self._step: str | None = arguments.step
        self._is_json: bool = arguments.json
        self._follows: bool = arguments.follow
        self._settings = settings
        self._attachment: Attachment | None = None
        self._was_attached = False

    def show(self) -> int:
        after: str | None = None
        while True:
            page = self._page(after)
            self._print(page["lines"])
            is_all = page["next_after"] == after or not page["lines"]
            after = page["next_after"]
            if page["is_complete"] or (is_all and not self._follows):
                return 0
            if is_all and self._is_hosting:
                note("the execution is open, and no host runs it: go on with `noetl up`")
                return 0

    @property
    def _is_hosting(self) -> bool:
        """Whether this process itself is the host: it only reads, so nothing will follow."""
        return self._attachment is not None and self._attachment.host is not None

    def _page(self, after: str | None) -> dict[str, Any]:
        """The next page, from whichever server answers."""
        while True:
            if self._attachment is None:
                patience = LOST_SERVER_SECONDS if self._was_attached else 0.0
                self._attachment = attach(self._settings, resume=False, patience_seconds=patience)
                self._was_attached = True
            try:
                follow = "true" if self._follows and not self._is_hosting else None
                return self._attachment.client.request("GET", self._path, step=self._step, after=after, follow=follow)
            except HostUnavailable:
                if not self._follows:
                    raise
                self.leave()
            except Refused as refused:
                if not self._follows or refused.status != HTTP_UNAVAILABLE:
                    raise  # otherwise the host lives and waits for its database
            time.sleep(AGAIN_SECONDS)

    def _print(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            print(json.dumps(line, ensure_ascii=False) if self._is_json else shown(line))
        sys.stdout.flush()  # whoever reads a pipe wants it now

    def leave(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.leave()
