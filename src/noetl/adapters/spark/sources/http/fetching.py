"""Pages over the network: one request after the other, in the pace that was asked for, and again when that may help."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from yarl import URL

from noetl.adapters.spark.sources.access import Carried
from noetl.adapters.spark.sources.http.options import HttpOptions, wrong
from noetl.adapters.spark.sources.http.pace import Pace
from noetl.adapters.spark.sources.http.paging import (
    PageRange,
    check_counted,
    check_new,
    check_next,
    has_more,
    is_behind_the_end,
    items_of,
    next_of,
    page_params,
    too_many,
)
from noetl.clients.http.body import content_type, parsed
from noetl.clients.http.exchange import Exchange, limited
from noetl.clients.http.failures import place, status_failure
from noetl.clients.http.policy import AddressPolicy
from noetl.clients.http.request import HttpRequest, checked_url, read_request
from noetl.clients.http.sessions import Sessions
from noetl.clients.http.whole import TooLarge, read_whole
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import SOURCE_HTTP_WAIT_SECONDS_MAX, SOURCE_PAGE_BYTES_MAX, SOURCE_PAGES_MAX
from noetl.ports.secrets import Credential

_BACKOFF_SECONDS = 0.5
_BACKOFF_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a task needs to ask for pages.  It travels with the tasks, so the credential is carried."""

    options: HttpOptions
    carried: Carried | None
    allow: tuple[str, ...]
    is_one_machine: bool

    def pace(self, share: int) -> Pace:
        rate = self.options.rate_per_s
        if rate is None or self.is_one_machine:
            return Pace(rate, str(URL(str(self.options.fields["url"])).origin()) if rate else None)
        return Pace(rate / share, None)


@dataclass(frozen=True, slots=True)
class Page:
    value: object
    headers: Mapping[str, str]
    url: URL


@dataclass(frozen=True, slots=True)
class _Asked:
    """The fields of a request, in the form in which the http tool has them."""

    fields: Mapping[str, object]
    auth: Credential | None
    input: Mapping[str, object] = field(default_factory=dict)


def pages(service: Service, wanted: PageRange) -> Iterator[tuple[Page, list[object]]]:
    """The pages of one partition with their rows.  Raises ToolFailed."""
    options = service.options
    with asyncio.Runner() as runner:
        client = Client(service, share=wanted.share)
        try:
            if options.is_chained:
                yield from _chained(client, runner, options)
                return
            if wanted.count is None:
                yield from _until_the_end(client, runner, options)
                return
            previous = None
            for number in range(wanted.first, wanted.first + wanted.count):
                page = runner.run(client.page(client.numbered(number, wanted.measure.step)))
                items = items_of(page.value, options.data_path)
                check_counted(options, wanted, number, items)
                check_new(number, items, previous)
                yield page, items
                previous = items
        finally:
            runner.run(client.close())


def _until_the_end(client: Client, runner: asyncio.Runner, options: HttpOptions) -> Iterator[tuple[Page, list[object]]]:
    step: int | None = None
    previous: list[object] | None = None
    for number in range(SOURCE_PAGES_MAX):
        try:
            page = runner.run(client.page(client.numbered(number, step)))
        except ToolFailed as error:
            if is_behind_the_end(options, previous, error.failure):
                return
            raise
        items = items_of(page.value, options.data_path)
        step = len(items) if step is None else step
        check_new(number, items, previous)
        yield page, items
        if not has_more(options, page.value, items, step):
            return
        check_next(options, number, items, step)
        previous = items
    raise too_many()


def _chained(client: Client, runner: asyncio.Runner, options: HttpOptions) -> Iterator[tuple[Page, list[object]]]:
    request, seen = client.numbered(0), set[str]()
    for _ in range(SOURCE_PAGES_MAX):
        page = runner.run(client.page(request))
        yield page, items_of(page.value, options.data_path)
        following = next_of(options, page.value, page.headers)
        if following is None:
            return
        if following in seen:
            raise wrong("a page names one that was read already as its next", "PAGES_IN_A_RING")
        seen.add(following)
        request = client.following(page, following)
    raise too_many()


def first_page(service: Service) -> Page:
    with asyncio.Runner() as runner:
        client = Client(service, share=1)
        try:
            return runner.run(client.page(client.numbered(0)))
        finally:
            runner.run(client.close())


class Client:
    """Asks for pages; for one event loop."""

    def __init__(self, service: Service, *, share: int) -> None:
        self._service = service
        self._policy = AddressPolicy(service.allow)
        self._sessions = Sessions(self._policy)
        self._pace = service.pace(share).opened()
        auth = None if service.carried is None else service.carried.opened()
        self._first = read_request(_Asked(fields=service.options.fields, auth=auth))

    async def close(self) -> None:
        await self._sessions.close()

    def numbered(self, number: int, step: int | None = None) -> HttpRequest:
        """The request of a page, counted from 0."""
        return self._with_params(page_params(self._service.options, number, step))

    def following(self, page: Page, name: str) -> HttpRequest:
        """The request that a page names: a cursor, or an address, which gets no credential if it is elsewhere."""
        parameter = self._service.options.cursor_param
        if parameter is not None:
            return self._with_params({**page_params(self._service.options, 0), parameter: name})
        try:
            url = checked_url(page.url.join(URL(name)))
        except ValueError:
            raise wrong("the address of the next page is not valid", "URL_INVALID") from None
        url = url.with_user(None) if url.user is not None else url
        is_elsewhere = url.origin() != self._first.url.origin()
        return replace(
            self._first, url=url, headers=self._first.headers_elsewhere() if is_elsewhere else self._first.headers
        )

    def _with_params(self, params: Mapping[str, object]) -> HttpRequest:
        return replace(self._first, url=self._first.url.update_query({name: str(one) for name, one in params.items()}))

    async def page(self, request: HttpRequest) -> Page:
        """One page, tried again for trouble that may pass.  Raises ToolFailed."""
        retries = self._service.options.retries
        for number in range(retries + 1):
            if self._pace is not None:
                await self._pace.turn()
            try:
                return await self._asked(request)
            except ToolFailed as error:
                wait = _wait(error.failure, number)
                if number == retries or wait is None:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _asked(self, request: HttpRequest) -> Page:
        exchange = Exchange(request, self._policy)
        async with limited(exchange, self._service.options.timeout_seconds):
            with self._sessions.session("", "", verify=request.is_verified) as session:
                async with exchange.response(session) as response:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    failure = status_failure(exchange.method, exchange.url, response.status, headers)
                    if failure is not None:
                        raise ToolFailed(failure)
                    try:
                        content = await read_whole(response, SOURCE_PAGE_BYTES_MAX)
                    except TooLarge:
                        raise _unusable(exchange, f"the page has more than {SOURCE_PAGE_BYTES_MAX:,} bytes") from None
        try:
            value = parsed(content, content_type(headers.get("content-type", "")).charset) if content else None
        except ValueError:
            raise _unusable(exchange, "the page is no JSON") from None
        return Page(value, headers, exchange.url)


def _unusable(exchange: Exchange, message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="parse", message=f"{place(exchange.method, exchange.url)}: {message}"))


def _wait(failure: Failure, number: int) -> float | None:
    """Seconds until the next try; None when there is no sense in one, or it would be too long."""
    if not failure.retryable:
        return None
    if failure.retry_after is not None:
        return failure.retry_after if failure.retry_after <= SOURCE_HTTP_WAIT_SECONDS_MAX else None
    longest = min(_BACKOFF_SECONDS * 2.0**number, _BACKOFF_SECONDS_MAX)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads tries, guards nothing
