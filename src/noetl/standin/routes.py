"""The answers that need no clock: pages of data, errors on demand, echoes, the journal."""

from __future__ import annotations

import contextlib
import json
from functools import cache

from noetl.standin import data
from noetl.standin.answers import Answer, Asked, Refused, failed, json_answer
from noetl.standin.counters import FlakyPages, Journal, Probes, SlidingWindow

PAGE_SIZE = 10
PAGE_SIZE_MAX = 1_000
PAGE_MAX = 1_000_000
PAYLOAD_KB_MAX = 1_024
RATE_MAX = 100_000
_STATUS = {"429": 429, "500": 500, "503": 503, "auth": 401, "401": 401, "403": 403, "404": 404}
_REFERENCE_MODES = ("inline", "linked")


class World:
    """Everything that changes while the stand-in runs."""

    def __init__(self, *, rate_limit: int) -> None:
        self.rate_limit = rate_limit
        self.patients = SlidingWindow()
        self.limited = SlidingWindow()
        self.probes = Probes()
        self.flaky = FlakyPages()
        self.journal = Journal()

    def reset(self) -> None:
        for part in (self.patients, self.limited, self.probes, self.flaky, self.journal):
            part.reset()


def health(_world: World, _asked: Asked) -> Answer:
    return json_answer({"status": "ok"})


def reset(world: World, _asked: Asked) -> Answer:
    world.reset()
    return json_answer({"status": "reset"})


# --- pages -----------------------------------------------------------------------------------------------


def page_of(asked: Asked, *, page_size: int = PAGE_SIZE) -> tuple[int, int]:
    return asked.integer("page", 1, 1, PAGE_MAX), asked.integer("pageSize", page_size, 1, PAGE_SIZE_MAX)


def assessment_page(asked: Asked) -> Answer:
    page, size = page_of(asked)
    items = [data.assessment(item) for item in data.page_range(page, size, data.ITEM_COUNT)]
    return json_answer({"data": items, "paging": data.paging(page, size, data.ITEM_COUNT)})


def assessments(_world: World, asked: Asked) -> Answer:
    return assessment_page(asked)


def users(_world: World, asked: Asked) -> Answer:
    offset, limit = asked.integer("offset", 0, 0, PAGE_MAX), asked.integer("limit", PAGE_SIZE, 1, PAGE_SIZE_MAX)
    items = [data.user(item) for item in range(offset + 1, min(offset + limit, data.ITEM_COUNT) + 1)]
    has_more = offset + limit < data.ITEM_COUNT
    return json_answer(
        {"users": items, "has_more": has_more, "offset": offset, "limit": limit, "total": data.ITEM_COUNT}
    )


def events(_world: World, asked: Asked) -> Answer:
    start, limit = asked.integer("cursor", 0, 0, PAGE_MAX), asked.integer("limit", PAGE_SIZE, 1, PAGE_SIZE_MAX)
    stop = min(start + limit, data.ITEM_COUNT)
    items = [data.event(item) for item in range(start + 1, stop + 1)]
    return json_answer({"events": items, "next_cursor": str(stop) if stop < data.ITEM_COUNT else None, "limit": limit})


def heavy(_world: World, asked: Asked) -> Answer:
    page, size = page_of(asked)
    payload_kb = asked.integer("payload_kb", 1, 0, PAYLOAD_KB_MAX)
    items = [data.heavy_item(item, payload_kb) for item in data.page_range(page, size, data.HEAVY_COUNT)]
    meta = {"payload_kb": payload_kb, "items": len(items)}
    return json_answer({"data": items, "paging": data.paging(page, size, data.HEAVY_COUNT), "meta": meta})


def reference_items(_world: World, asked: Asked) -> Answer:
    page, size = page_of(asked)
    total = asked.integer("total", data.HEAVY_COUNT, 0, PAGE_MAX)
    payload_kb, mode = asked.integer("payload_kb", 0, 0, PAYLOAD_KB_MAX), asked.text("ref_mode", "inline")
    if mode not in _REFERENCE_MODES:
        raise Refused(400, f"ref_mode must be one of {', '.join(_REFERENCE_MODES)}")
    numbers = data.page_range(page, size, total)
    chain = [data.record_ref(item) for item in (numbers[-2:] if mode == "linked" else numbers)]
    return json_answer(
        {
            "data": [data.record(item, payload_kb, mode=mode) for item in numbers],
            "paging": data.paging(page, size, total),
            "refs": {"mode": mode, "chain": chain, "count": len(numbers)},
        }
    )


def reference_detail(_world: World, asked: Asked) -> Answer:
    name = asked.path.rpartition("/")[2].removeprefix("record-")
    if not name.isascii() or not name.isdigit() or not 1 <= int(name[:12]) <= PAGE_MAX:
        raise Refused(404, "no such record")
    payload_kb = asked.integer("payload_kb", 0, 0, PAYLOAD_KB_MAX)
    return json_answer({"data": data.record(int(name), payload_kb, mode="linked")})


# --- trouble on demand -----------------------------------------------------------------------------------


def flaky(world: World, asked: Asked) -> Answer:
    page, _ = page_of(asked)
    failing = {text.strip() for text in asked.text("fail_on").split(",")}
    if str(page) in failing and world.flaky.attempt(page) == 1:
        return failed(500, f"page {page} fails the first time")
    return assessment_page(asked)


def flaky_reset(world: World, _asked: Asked) -> Answer:
    world.flaky.reset()
    return json_answer({"status": "reset"})


def errors(_world: World, asked: Asked) -> Answer:
    """Every error but `timeout`, which has to wait."""
    error_type = asked.text("error_type")
    if not error_type:
        return assessment_page(asked)
    status = _STATUS.get(error_type)
    if status is None:
        raise Refused(400, f"error_type must be one of {', '.join((*_STATUS, 'timeout'))}")
    wait = asked.integer("retry_after", 1, 0, 86_400) if status in (429, 503) else None
    return failed(status, f"error {error_type} was asked for", retry_after_seconds=wait)


def rate_limited(world: World, asked: Asked) -> Answer:
    wait = world.limited.admit(asked.integer("requests_per_second", 5, 1, RATE_MAX))
    if wait is not None:
        raise Refused(429, "too many requests in one second", retry_after_seconds=wait)
    return assessment_page(asked)


# --- probes and the journal ------------------------------------------------------------------------------


def probes_reset(world: World, _asked: Asked) -> Answer:
    world.probes.reset()
    return json_answer({"status": "reset"})


def probes_stats(world: World, _asked: Asked) -> Answer:
    return json_answer(world.probes.document())


def journal(world: World, _asked: Asked) -> Answer:
    return json_answer(world.journal.document())


def journal_note(world: World, asked: Asked) -> Answer:
    item = asked.text("item")
    if not item:
        raise Refused(400, "item is required")
    count = world.journal.note(item)
    if count is None:
        raise Refused(507, "the journal is full: reset it")
    return json_answer({"item": item, "count": count})


def journal_reset(world: World, _asked: Asked) -> Answer:
    world.journal.reset()
    return json_answer({"status": "reset"})


# --- stand-ins of public services ------------------------------------------------------------------------


async def echo(_world: World, asked: Asked) -> Answer:
    """The request as it arrived: arguments, headers, body."""
    content = await asked.body()
    headers = {name.decode("latin-1").title(): value.decode("latin-1") for name, value in asked.headers}
    text = content.decode("utf-8", "replace")
    document: dict[str, object] = {
        "args": dict(asked.parameters),
        "headers": headers,
        "method": asked.method,
        "url": f"http://{headers.get('Host', '')}{asked.path}" + (f"?{asked.query.decode()}" if asked.query else ""),
        "data": text,
        "json": None,
    }
    with contextlib.suppress(ValueError, RecursionError):
        document["json"] = json.loads(text) if text else None
    return json_answer(document)


@cache
def _posts() -> Answer:
    return json_answer([data.post(item) for item in range(1, data.POST_COUNT + 1)])


@cache
def _people() -> Answer:
    return json_answer([data.person(item) for item in range(1, data.USER_COUNT + 1)])


def posts(_world: World, _asked: Asked) -> Answer:
    return _posts()


def people(_world: World, _asked: Asked) -> Answer:
    return _people()
