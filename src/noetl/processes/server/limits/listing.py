"""How the shared limits stand."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.ports.serving.permits import LimitView, PermitBooks
from noetl.processes.server.bodies import answer
from noetl.processes.server.owners import owner_of


class LimitUserView(BaseModel):
    execution_id: str
    in_use: int
    waiting: int


class SharedLimitView(BaseModel):
    name: str
    rate: float | None = Field(description="calls per second; the strictest of what is declared by whoever uses it")
    concurrency: int | None = Field(description="calls at a time; the same")
    in_use: int = Field(description="permits in the hands of sessions that are alive")
    waiting: int
    granted: int = Field(description="permits since the limit was first used, or the database was restarted")
    executions: list[LimitUserView]


class LimitsView(BaseModel):
    limits: list[SharedLimitView]


def router(books: PermitBooks) -> APIRouter:
    found = APIRouter(tags=["executions"])

    @found.get("/api/limits", responses={200: {"model": LimitsView}})
    async def limits(request: Request) -> Response:
        """The shared limits that executions use now, over all servers."""
        owner = owner_of(request)
        views = await books.look(tenant_id=owner.tenant_id, organization_id=owner.organization_id)
        return answer({"limits": [_view(one) for one in views]})

    return found


def _view(one: LimitView) -> dict[str, object]:
    return {
        "name": one.name,
        "rate": one.allowance.rate,
        "concurrency": one.allowance.concurrency,
        "in_use": sum(user.in_use for user in one.users),
        "waiting": sum(user.waiting for user in one.users),
        "granted": one.granted,
        "executions": [
            {"execution_id": str(user.execution_id), "in_use": user.in_use, "waiting": user.waiting}
            for user in one.users
        ],
    }
