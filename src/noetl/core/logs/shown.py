"""A line of a log as a person reads it.  What user code printed must not steer the reader's terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from noetl.core.logs.lines import LOG, STDERR

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_MARKS = {STDERR: "!", LOG: "·"}


def shown(view: Mapping[str, Any]) -> str:
    """Time, step, task, row, attempt where they say something, and the text; `!` is standard error, `·` is ours."""
    where = view["step"]
    if view["task"] not in (where, f"{where}_task"):  # the name of a step's only task
        where += f"/{view['task']}"
    if view["row"] is not None:
        where += f"[{view['row']}]"
    if view["attempt"] > 1 or view["try"] > 1:
        where += f" (attempt {view['attempt']}.{view['try']})"
    return f"{view['at'][11:23]} {where} {_MARKS.get(view['stream'], '|')} {safe(view['text'])}"


def safe(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
