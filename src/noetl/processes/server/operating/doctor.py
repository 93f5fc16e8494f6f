"""What is wrong here, and having it fixed.  For whoever runs this process: findings are of all tenants."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from noetl.engine.doctor.doctor import Doctor
from noetl.processes.server.bodies import answer


class FindingView(BaseModel):
    """`code` is stable; `what`, `where` and `do` are for people.  `can_fix`: this process can do it itself."""

    code: str
    what: str
    where: str
    do: str
    can_fix: bool


class FindingsView(BaseModel):
    findings: list[FindingView]


class TreatmentView(BaseModel):
    """`fixed` is gone; `findings` are what is left."""

    fixed: list[FindingView]
    findings: list[FindingView]


def router(doctor: Doctor) -> APIRouter:
    found = APIRouter(tags=["doctor"])

    @found.get("/api/doctor", responses={200: {"model": FindingsView}})
    async def examine(_request: Request) -> Response:
        """Look at everything; nothing is changed."""
        return answer({"findings": [one.to_json() for one in await doctor.examine()]})

    @found.post("/api/doctor/fix", responses={200: {"model": TreatmentView}})
    async def fix(_request: Request) -> Response:
        """Fix what can be fixed by this process, and look again."""
        treatment = await doctor.treat()
        return answer(
            {
                "fixed": [one.to_json() for one in treatment.fixed],
                "findings": [one.to_json() for one in treatment.left],
            }
        )

    return found
