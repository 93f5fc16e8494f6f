"""Which pages there are, and who asks for which.  Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from noetl.adapters.spark.sources.http.options import HttpOptions, wrong
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import SOURCE_PAGES_MAX

_LINK = re.compile(r"<([^>]*)>([^<]*)")
_NEXT = re.compile(r'\brel\s*=\s*"?(?:[^",;]*\s)?next(?:\s[^",;]*)?"?', re.I)

_NOT_FOUND = 404
# What services write for yes and no.
_TRUE: tuple[object, ...] = (True, "true", "1")
_FALSE: tuple[object, ...] = (False, None, "", "false", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What the first page tells about the others."""

    step: int | None = None
    """Rows of a page.  Services give less than they were asked for when that was too much."""
    total: int | None = None
    pages: int | None = None
    mark: str | None = None
    """Of its rows: another page that has the same mark is the first one again."""

    def expected(self, number: int) -> int | None:
        """How many rows a page must have, counted from 0; None when nobody knows."""
        if self.total is None or self.step is None:
            return None
        return max(0, min(self.step, self.total - number * self.step))


@dataclass
class PageRange(InputPartition):
    """Pages with these numbers, from 0; or, without a count, one after the other until there are no more."""

    first: int
    count: int | None
    share: int
    """Into how many partitions the pages are cut."""
    measure: Measure

    def __init__(self, first: int, count: int | None, share: int, measure: Measure) -> None:
        super().__init__((first, count))
        self.first = first
        self.count = count
        self.share = share
        self.measure = measure


def needs_first_page(options: HttpOptions) -> bool:
    """Whether the plan depends on it: on a count that it has, or on how many rows it has."""
    is_stepping = options.offset_param is not None and options.pages is not None
    return options.is_numbered and bool(options.pages_path or options.total_path or is_stepping)


def measured(options: HttpOptions, first_page: object) -> Measure:
    """Raises ToolFailed when the first page contradicts itself."""
    items = items_of(first_page, options.data_path)
    step, mark = len(items), mark_of(items)
    if options.total_path:
        total = _counted(first_page, options.total_path, "total_path")
        if step > total or (total and not step):
            where = ".".join(options.total_path)
            raise wrong(f"total_path: the first page has {step} rows, and {where} says {total}", "ROWS_MISCOUNTED")
        return Measure(step=step, total=total, pages=-(-total // step) if total else 0, mark=mark)
    pages = options.pages
    if pages is None:
        pages = _counted(first_page, options.pages_path, "pages_path")
    if not step and pages > 1 and options.offset_param is not None:
        raise wrong(f"the first of {pages} pages has no rows: nobody knows where the second begins", "ROWS_MISCOUNTED")
    return Measure(step=step, pages=pages, mark=mark)


def ranges(options: HttpOptions, measure: Measure) -> list[PageRange]:
    """Every page in exactly one of them; sizes differ by one at most."""
    count = measure.pages if options.pages is None else options.pages
    if count is None:
        return [PageRange(0, None if options.is_numbered or options.is_chained else 1, 1, measure)]
    if count > SOURCE_PAGES_MAX:
        raise too_many()
    share = min(options.partitions, max(count, 1))
    cuts = [count * number // share for number in range(share + 1)]
    return [PageRange(cuts[number], cuts[number + 1] - cuts[number], share, measure) for number in range(share)]


def page_params(options: HttpOptions, number: int, step: int | None = None) -> dict[str, object]:
    """What is added to the query for a page, counted from 0.  `step` is how many rows the first one has."""
    params: dict[str, object] = {}
    if options.page_size_param is not None and options.page_size is not None:
        params[options.page_size_param] = options.page_size
    if options.page_param is not None:
        params[options.page_param] = options.page_start + number
    elif options.offset_param is not None:
        assert options.page_size is not None
        params[options.offset_param] = options.page_start + number * (options.page_size if step is None else step)
    return params


def check_counted(options: HttpOptions, wanted: PageRange, number: int, items: Sequence[object]) -> None:
    """Raises ToolFailed for a page of a known count that cannot be the one with this number."""
    measure, count = wanted.measure, len(items)
    expected = measure.expected(number)
    if expected is not None and count != expected:
        message = f"page {number + 1} has {count} rows instead of {expected}: pages have {measure.step} rows"
        raise wrong(f"{message}, and the total is {measure.total}", "ROWS_MISCOUNTED")
    is_last = measure.pages is not None and number == measure.pages - 1
    if options.offset_param is not None and not is_last:
        _check_step(number, count, measure.step)
    if number == wanted.first > 0 and items and mark_of(items) == measure.mark:
        raise _repeated(number, 0)


def check_next(options: HttpOptions, number: int, items: Sequence[object], step: int) -> None:
    """Raises ToolFailed when the page behind this one cannot be asked for."""
    if options.offset_param is not None:
        _check_step(number, len(items), step)


def check_new(number: int, items: Sequence[object], previous: Sequence[object] | None) -> None:
    """Raises ToolFailed for the page before this one, given again."""
    if items and items == previous:
        raise _repeated(number, number - 1)


def _check_step(number: int, count: int, step: int | None) -> None:
    if step is not None and (count != step or not step):
        message = f"page {number + 1} has {count} rows, the first one {step}, and more are to follow"
        raise wrong(f"{message}: by offset_param rows would be missed or read twice", "ROWS_MISCOUNTED")


def _repeated(number: int, other: int) -> ToolFailed:
    message = f"page {number + 1} has the same rows as page {other + 1}"
    return wrong(f"{message}: does the service know page_param or offset_param by this name?", "PAGES_IN_A_RING")


def too_many() -> ToolFailed:
    return wrong(f"there are more than {SOURCE_PAGES_MAX:,} pages: ask for larger ones, or for less", "PAGES_TOO_MANY")


def mark_of(items: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(items, sort_keys=True, default=str).encode()).hexdigest()


def items_of(page: object, path: Sequence[str]) -> list[object]:
    """The rows of a page.  Raises ToolFailed when there is no list."""
    found = at(page, path[:-1]) if path else page
    if path and isinstance(found, Mapping) and path[-1] in found:
        # A page behind the last one may have null instead of an empty list; a name that is not there is a mistake.
        found = [] if found[path[-1]] is None else found[path[-1]]
    elif path:
        found = at(found, path[-1:])
    if isinstance(found, list):
        return found
    if not path and isinstance(found, Mapping):
        return [found]
    where = ".".join(path) or "the answer itself"
    raise wrong(f"data_path: {where} is no list of rows", "DATA_MISSING")


def has_more(options: HttpOptions, page: object, items: Sequence[object], step: int) -> bool:
    """Whether to ask for the page behind this one, when nobody knows how many there are.  `step` is how many rows the
    first one has: that it has less than it was asked for says nothing yet."""
    if options.more_path:
        return _flag_at(page, options.more_path)
    return bool(items) and (options.page_size is None or len(items) >= step)


def is_behind_the_end(options: HttpOptions, previous: Sequence[object] | None, failure: Failure) -> bool:
    """Whether a page that is not there is none to miss: the one before it had less than was asked for."""
    if failure.status != _NOT_FOUND or previous is None or options.more_path:
        return False
    return options.page_size is not None and len(previous) < options.page_size


def _flag_at(page: object, path: Sequence[str]) -> bool:
    holder, name = at(page, path[:-1]), path[-1]
    if isinstance(holder, Mapping) and name in holder:
        found = holder[name]
        found = found.lower() if isinstance(found, str) else found
        for words, flag in ((_TRUE, True), (_FALSE, False)):
            # By its type too: 1.5 and a list are neither.
            if isinstance(found, bool | int | str | None) and found in words:
                return flag
    raise wrong(f"more_path: a page has neither true nor false at {'.'.join(path)}", "DATA_MISSING")


def next_of(options: HttpOptions, page: object, headers: Mapping[str, str]) -> str | None:
    """The cursor or the address of the next page."""
    if options.is_linked:
        for address, rest in _LINK.findall(headers.get("link", "")):
            if _NEXT.search(rest):
                return str(address)
        return None
    found = at(page, options.next_path)
    if found in (None, "", False):
        return None
    if isinstance(found, str | int) and not isinstance(found, bool):
        return str(found)
    raise wrong(f"next_path: {'.'.join(options.next_path)} is neither a text nor a number", "DATA_MISSING")


def at(value: object, path: Sequence[str]) -> object:
    """A part of a JSON value; None when it is not there."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _counted(page: object, path: Sequence[str], name: str) -> int:
    found = at(page, path)
    if isinstance(found, str) and found.isascii() and found.isdigit():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= SOURCE_PAGES_MAX * 1_000:
        raise wrong(f"{name}: the first page has no number at {'.'.join(path)}", "DATA_MISSING")
    return found
