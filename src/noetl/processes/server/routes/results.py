"""Results of steps: which there are, and each of them in the format that the reader wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.dataset import MEDIA_PARQUET
from noetl.core.errors import RequestInvalid
from noetl.core.limits import RESULT_COLUMNS_MAX, RESULT_PATH_CHARS_MAX, RESULTS_LISTED_MAX
from noetl.core.reference import MEDIA_ARROW, MEDIA_JSON, Reference
from noetl.core.results.members import parsed_path
from noetl.engine.reading.encoding import Window, window_of
from noetl.engine.reading.service import ResultService, StepReading
from noetl.processes.server import models
from noetl.processes.server.bodies import answer, execution_id_of
from noetl.processes.server.owners import owner_of
from noetl.processes.server.reading.answers import StreamAnswer, streamed
from noetl.processes.server.reading.negotiation import MEDIA_TYPES, Format, chosen
from noetl.processes.server.reading.ranges import is_known, wanted_part

ROWS_MAX = 2**62
TOTAL_HEADER = "Noetl-Total-Rows"
_STORED_AS = {Format.JSON: MEDIA_JSON, Format.ARROW: MEDIA_ARROW}


class ResultQuery(BaseModel):
    """What a request wants of a result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Format | None = Field(None, description="instead of Accept")
    raw: bool = Field(False, description="the stored bytes, as `format=raw`")
    path: str = Field("", max_length=RESULT_PATH_CHARS_MAX, description="a part of the result, such as `pull.rows`")
    offset: int = Field(0, ge=0, le=ROWS_MAX)
    limit: int | None = Field(None, ge=0, le=ROWS_MAX)
    columns: list[str] | None = Field(None, max_length=RESULT_COLUMNS_MAX, description="names with commas in between")

    @property
    def is_windowed(self) -> bool:
        return self.offset > 0 or self.limit is not None or self.columns is not None

    @property
    def is_all(self) -> bool:
        return not self.path and not self.is_windowed

    def names(self) -> tuple[str, ...] | None:
        """`columns=a,b` and `columns=a&columns=b` are the same.  Raises RequestInvalid."""
        if self.columns is None:
            return None
        texts = [name.strip() for text in self.columns for name in text.split(",")]
        names = tuple(dict.fromkeys(name for name in texts if name))
        if not names:
            raise RequestInvalid("columns names none: write columns=a,b, or leave it out for all of them")
        return names


def router(results: ResultService) -> APIRouter:
    found = APIRouter(tags=["results"])
    routes = _Routes(results)
    content: dict[str, Any] = {kind.partition(";")[0]: {} for kind in MEDIA_TYPES.values()}
    found.add_api_route(
        "/api/executions/{execution_id}/results", routes.list, responses={200: {"model": models.ResultsView}}
    )
    found.add_api_route(
        "/api/executions/{execution_id}/results/{step:path}",
        routes.get,
        response_class=Response,
        responses={200: {"content": content}, 206: {"content": {"*/*": {}}}, 304: {"description": "not changed"}},
    )
    found.add_api_route(
        "/api/executions/{execution_id}/results/{step:path}",
        routes.head,
        methods=["HEAD"],
        response_class=Response,
        responses={200: {"content": content}, 206: {"content": {"*/*": {}}}, 304: {"description": "not changed"}},
    )
    return found


class _Routes:
    def __init__(self, results: ResultService) -> None:
        self._results = results

    async def list(
        self,
        request: Request,
        execution_id: str,
        offset: Annotated[int, Query(ge=0, le=ROWS_MAX)] = 0,
        limit: Annotated[int, Query(ge=1, le=RESULTS_LISTED_MAX)] = 100,
    ) -> Response:
        """The steps that have results, in the order in which they first ended."""
        total, found = await self._results.listed(
            execution_id_of(execution_id), offset=offset, limit=limit, **owner_of(request)
        )
        following = offset + limit if offset + limit < total else None
        return answer({"results": [asdict(one) for one in found], "total": total, "next_offset": following})

    async def get(
        self, request: Request, execution_id: str, step: str, query: Annotated[ResultQuery, Query()]
    ) -> Response:
        """The result of a step's last run, or of a part of it, by `format` or Accept.

        Formats of rows and columns are about the list that the result is or has under `rows`, `results` or `data`; with
        `path` about another one.  `offset`, `limit` and `columns` choose among its rows."""
        reading = await self._results.find(execution_id_of(execution_id), step, **owner_of(request))
        path, names, wanted = parsed_path(query.path), query.names(), _wanted(request, query, reading)
        if wanted is Format.RAW or (query.is_all and _is_stored_so(reading, wanted)):
            return await _stored(request, reading, reading.raw())
        file = await reading.parquet(path) if wanted is Format.PARQUET and not query.is_windowed else None
        if file is not None:
            return await _stored(request, reading, file)
        etag = f'W/"{reading.digest(wanted, path, query.offset, query.limit, names)}"'
        headers = _headers(etag, MEDIA_TYPES[wanted])
        if is_known(request.headers.get("If-None-Match"), etag):
            return Response(status_code=304, headers=headers)
        if wanted is Format.JSON and not query.is_windowed:
            return await streamed(await reading.json(path), headers=headers)
        rows = await reading.rows(path)
        try:
            window = window_of(rows, offset=query.offset, limit=query.limit, columns=names)
        except RequestInvalid:
            rows.close()
            raise
        headers |= {TOTAL_HEADER: str(rows.total), **_links(request, window, rows.total)}
        return await streamed(self._results.encoder.encoded(rows, window, wanted), headers=headers)

    async def head(
        self, request: Request, execution_id: str, step: str, query: Annotated[ResultQuery, Query()]
    ) -> Response:
        """The same answer without its bytes: the size if it is known, the version and the number of rows."""
        found = await self.get(request, execution_id, step, query)
        if isinstance(found, StreamAnswer):
            await found.leave_out()
        return found


def _wanted(request: Request, query: ResultQuery, reading: StepReading) -> Format:
    own = None if reading.reference is None else reading.reference.media_type
    wanted = Format.RAW if query.raw else query.format or chosen(request.headers.get("Accept"), own)
    if wanted is Format.RAW and not query.is_all:
        raise RequestInvalid("the stored bytes are one whole: path, offset, limit and columns need another format")
    return wanted


def _headers(etag: str, media_type: str) -> dict[str, str]:
    return {"ETag": etag, "Content-Type": media_type, "Cache-Control": "private, no-cache", "Vary": "Accept"}


# --- the stored bytes ------------------------------------------------------------------------------------


def _is_stored_so(reading: StepReading, wanted: Format) -> bool:
    """Whether the stored bytes are what is asked for."""
    reference = reading.reference
    if reference is None or reading.is_failed or reference.media_type != _STORED_AS.get(wanted):
        return False
    # What compresses an Arrow stream is a part of the stream; everything else would need a header.
    return wanted is Format.ARROW or reference.compression is None


async def _stored(request: Request, reading: StepReading, reference: Reference) -> Response:
    etag = f'"{reference.sha256}"'
    headers = {**_headers(etag, reference.media_type), "Accept-Ranges": "bytes", **_encoding(reference)}
    if reference.media_type == MEDIA_PARQUET and reference.row_count is not None:
        headers[TOTAL_HEADER] = str(reference.row_count)
    if is_known(request.headers.get("If-None-Match"), etag):
        return Response(status_code=304, headers=headers)
    # Ranges are about bodies, and a HEAD has none.
    asked = None if request.method == "HEAD" else request.headers.get("Range")
    part = wanted_part(asked, request.headers.get("If-Range"), size=reference.bytes, etag=etag)
    if part is None:
        headers["Content-Length"] = str(reference.bytes)
        return await streamed(reading.stored_bytes(0, reference.bytes, reference), headers=headers)
    headers["Content-Length"] = str(part.length)
    headers["Content-Range"] = f"bytes {part.first}-{part.first + part.length - 1}/{reference.bytes}"
    return await streamed(reading.stored_bytes(part.first, part.length, reference), headers=headers, status=206)


def _encoding(reference: Reference) -> Mapping[str, str]:
    return {"Content-Encoding": "gzip"} if reference.compression == "gzip" else {}


# --- pages -----------------------------------------------------------------------------------------------


def _links(request: Request, window: Window, total: int) -> dict[str, str]:
    """Where the next page and the one before are."""
    end = window.first + window.count
    links = []
    if end < total and window.count:
        links.append(_link(request, "next", offset=end, limit=window.count))
    if window.first > 0 and window.count:
        start = max(window.first - window.count, 0)
        links.append(_link(request, "prev", offset=start, limit=window.first - start))
    return {"Link": ", ".join(links)} if links else {}


def _link(request: Request, relation: str, **page: int) -> str:
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in page]
    query = urlencode([*kept, *page.items()])
    return f'<{quote(request.url.path)}?{query}>; rel="{relation}"'
