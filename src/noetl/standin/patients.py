"""Patients and their records.  How many pages a patient has is a function of the patient and the kind."""

from __future__ import annotations

from noetl.standin.data import filler, number

RECORD_PAGES = (2, 5)
# Kind of record → fewest and most pages of a patient.
PAGES: dict[str, tuple[int, int]] = {
    "assessments": (2, 4),
    "conditions": (1, 3),
    "medications": (2, 3),
    "vital_signs": (1, 1),
    "demographics": (1, 1),
}
MDS_ASSESSMENTS = (1, 4)


def between(seed: str, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return low + number(seed) % (high - low + 1)


def page_count(patient_id: str, kind: str) -> int:
    return between(f"{patient_id}:{kind}", PAGES[kind])


def record_page_count(patient_id: str) -> int:
    return between(f"{patient_id}:records", RECORD_PAGES)


def patient_entry(patient_id: str, item: int, payload_kb: int) -> dict[str, object]:
    document: dict[str, object] = {
        "id": f"{patient_id}-{item}",
        "patientId": patient_id,
        "code": f"C{number(f'{patient_id}:{item}:code') % 1000:03}",
        "value": number(f"{patient_id}:{item}:value") % 1000,
    }
    if payload_kb:
        document["payload"] = filler(f"{patient_id}:{item}", payload_kb)
    return document


def patient_record(patient_id: str, kind: str, page: int) -> dict[str, object]:
    seed = f"{patient_id}:{kind}:{page}"
    return {
        "id": f"{kind}-{patient_id}-{page}",
        "patientId": patient_id,
        "type": kind,
        "page": page,
        "value": number(seed) % 1000,
        "recordedAt": f"2024-{1 + number(seed + ':month') % 12:02}-{1 + number(seed + ':day') % 28:02}",
    }


def mds_assessment_ids(patient_id: str) -> list[str]:
    count = between(f"{patient_id}:mds", MDS_ASSESSMENTS)
    return [f"mds-{patient_id}-{item}" for item in range(1, count + 1)]


def mds_assessment(assessment_id: str) -> dict[str, object]:
    sections = {name: number(f"{assessment_id}:{name}") % 28 for name in ("A", "B", "C", "D", "GG")}
    return {
        "assessmentId": assessment_id,
        "status": ("open", "complete", "exported")[number(assessment_id) % 3],
        "sections": sections,
        "total": sum(sections.values()),
    }
