"""The patient endpoints: limited for the whole process, with pages that end."""

from __future__ import annotations

import asyncio

from noetl.standin import patients
from noetl.standin.answers import Answer, Asked, Refused, json_answer
from noetl.standin.data import number, page_range, paging
from noetl.standin.routes import PAYLOAD_KB_MAX, RATE_MAX, World, page_of

DELAY_SECONDS_MAX = 60.0
PATIENTS_MAX = 10_000
BATCH_MAX = 1_000


def admit(world: World, rate: int) -> None:
    """All patient endpoints of the process share one window."""
    wait = world.patients.admit(rate) if rate else None
    if wait is not None:
        raise Refused(429, f"more than {rate} requests per second", retry_after_seconds=wait)


def _patient(asked: Asked) -> str:
    patient_id = asked.text("patientId")
    if not patient_id:
        raise Refused(400, "patientId is required")
    return patient_id


async def patient_records(world: World, asked: Asked) -> Answer:
    admit(world, asked.integer("rate_limit", world.rate_limit, 0, RATE_MAX))
    patient_id, (page, size) = _patient(asked), page_of(asked)
    low = asked.decimal("min_delay", 0.0, 0.0, DELAY_SECONDS_MAX)
    high = asked.decimal("max_delay", low, low, DELAY_SECONDS_MAX)
    payload_kb = asked.integer("payload_kb", 0, 0, PAYLOAD_KB_MAX)
    if high > 0:
        await asyncio.sleep(low + (high - low) * (number(f"{patient_id}:{page}:delay") % 1000) / 1000)
    pages = patients.record_page_count(patient_id)
    if page > pages:
        raise Refused(404, f"patient {patient_id} has {pages} pages")
    entries = [
        patients.patient_entry(patient_id, item, payload_kb) for item in range((page - 1) * size + 1, page * size + 1)
    ]
    meta = {"page": page, "pageSize": size, "totalPages": pages, "hasMore": page < pages, "total": pages * size}
    return json_answer({"resourceType": "Bundle", "patientId": patient_id, "entry": entries, "meta": meta})


def patient_type(world: World, asked: Asked) -> Answer:
    """`/api/v1/patient/{kind}`: one record per page."""
    kind = asked.path.rpartition("/")[2]
    if kind not in patients.PAGES:
        raise Refused(404, f"{kind!r} is none of {', '.join(patients.PAGES)}")
    admit(world, world.rate_limit)
    patient_id, page = _patient(asked), page_of(asked)[0]
    pages = patients.page_count(patient_id, kind)
    if page > pages:
        raise Refused(404, f"patient {patient_id} has {pages} pages of {kind}")
    return json_answer({"data": [patients.patient_record(patient_id, kind, page)], "paging": paging(page, 1, pages)})


# --- the large flows -------------------------------------------------------------------------------------


def mds_assessment_ids(_world: World, asked: Asked) -> Answer:
    """The assessments of one patient, or page by page those of the first `patients` patients."""
    if asked.text("patientId"):
        patient_id = asked.text("patientId")
        ids = patients.mds_assessment_ids(patient_id)
        return json_answer({"patientId": patient_id, "assessmentIds": ids, "count": len(ids)})
    page, size = page_of(asked, page_size=100)
    total = asked.integer("patients", 100, 0, PATIENTS_MAX)
    ids = [one for item in page_range(page, size, total) for one in patients.mds_assessment_ids(str(item))]
    return json_answer({"assessmentIds": ids, "count": len(ids), "paging": paging(page, size, total)})


def mds_assessment(_world: World, asked: Asked) -> Answer:
    name = asked.path.rpartition("/")[2]
    if not name.startswith("mds-"):
        raise Refused(404, "no such assessment")
    return json_answer({"data": patients.mds_assessment(name)})


def pft_batch(_world: World, asked: Asked) -> Answer:
    """`/api/v1/pft/batch/{kind}?patientIds=1,2`: every record of the kind for each of the patients."""
    kind = asked.path.rpartition("/")[2]
    if kind not in patients.PAGES:
        raise Refused(404, f"{kind!r} is none of {', '.join(patients.PAGES)}")
    ids = _listed(asked, "patientIds")
    records = [
        patients.patient_record(one, kind, page) for one in ids for page in range(1, patients.page_count(one, kind) + 1)
    ]
    return json_answer({"type": kind, "data": records, "count": len(records), "patients": len(ids)})


def pft_mds_details(_world: World, asked: Asked) -> Answer:
    ids = _listed(asked, "assessmentIds")
    return json_answer({"data": [patients.mds_assessment(one) for one in ids], "count": len(ids)})


def _listed(asked: Asked, name: str) -> list[str]:
    values = [value.strip() for value in asked.text(name).split(",") if value.strip()]
    if not values or len(values) > BATCH_MAX:
        raise Refused(400, f"{name} must be 1 to {BATCH_MAX} values, separated by commas")
    return values
