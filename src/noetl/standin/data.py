"""The stand-in's data: functions of their arguments alone, so every process and every run sees the same."""

from __future__ import annotations

import hashlib
from functools import lru_cache

ITEM_COUNT = 35
HEAVY_COUNT = 100
POST_COUNT = 100
USER_COUNT = 10


def number(seed: str) -> int:
    """A number that looks like chance and is a function of the seed."""
    return int.from_bytes(hashlib.md5(seed.encode(), usedforsecurity=False).digest()[:8], "big")


@lru_cache(maxsize=256)
def filler(seed: str, kilobytes: int) -> str:
    """Text of so many kilobytes that does not compress to nothing."""
    return hashlib.shake_128(seed.encode()).hexdigest(kilobytes * 512)


def paging(page: int, page_size: int, total: int) -> dict[str, object]:
    return {"hasMore": page * page_size < total, "page": page, "pageSize": page_size, "total": total}


def page_range(page: int, page_size: int, total: int) -> range:
    """The numbers, from 1, of the items on a page; empty past the end."""
    first = (page - 1) * page_size + 1
    return range(first, min(first + page_size, total + 1))


def assessment(item: int) -> dict[str, object]:
    return {"id": item, "name": f"Assessment {item}", "score": number(f"assessment:{item}") % 101}


def user(item: int) -> dict[str, object]:
    return {"id": item, "name": f"User {item}", "email": f"user{item}@example.test", "active": item % 3 != 0}


def event(item: int) -> dict[str, object]:
    kinds = ("created", "updated", "closed")
    day = 1 + item % 28
    return {"id": item, "type": kinds[item % 3], "timestamp": f"2024-01-{day:02}T00:00:00Z", "value": item * 10}


def heavy_item(item: int, payload_kb: int) -> dict[str, object]:
    return {"id": item, "name": f"Heavy {item}", "payload": filler(f"heavy:{item}", payload_kb)}


def record(item: int, payload_kb: int, *, mode: str) -> dict[str, object]:
    """One record of the reference chain; in linked mode it names the record before it."""
    document: dict[str, object] = {
        "record_id": item,
        "record_ref": record_ref(item),
        "checksum": f"{number(f'record:{item}'):016x}",
    }
    if mode == "linked":
        document["previous_ref"] = record_ref(item - 1) if item > 1 else None
    if payload_kb:
        document["payload"] = filler(f"record:{item}", payload_kb)
    return document


def record_ref(item: int) -> str:
    return f"record-{item:06}"


def post(item: int) -> dict[str, object]:
    return {
        "userId": (item - 1) // 10 + 1,
        "id": item,
        "title": f"Title of post {item}",
        "body": f"Text of post {item}, the same in every run.",
    }


def person(item: int) -> dict[str, object]:
    return {
        "id": item,
        "name": f"Person {item}",
        "username": f"person{item}",
        "email": f"person{item}@example.test",
        "address": {"city": f"City {item}", "zipcode": f"{10000 + item}"},
        "company": {"name": f"Company {item}"},
    }
