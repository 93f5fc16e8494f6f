"""The HTTP stand-in: every endpoint, as a client of the real process sees it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from noetl.standin.counters import SlidingWindow
from tests.support.aio import asynchronous
from tests.support.standin import standin_process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with standin_process(rate_limit=0) as where:
        yield where


def ask(url: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, document and headers of one request."""
    request = urllib.request.Request(url, method=method, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), error.headers


def document(url: str) -> Any:
    status, answer, _ = ask(url)
    assert status == 200, answer
    return answer


def test_it_is_healthy(address: str) -> None:
    assert document(f"{address}/health") == {"status": "ok"}


def test_pages_of_assessments_end(address: str) -> None:
    first = document(f"{address}/api/v1/assessments")
    assert first["paging"] == {"hasMore": True, "page": 1, "pageSize": 10, "total": 35}
    assert [item["id"] for item in first["data"]] == list(range(1, 11))
    assert set(first["data"][0]) == {"id", "name", "score"}
    last = document(f"{address}/api/v1/assessments?page=4&pageSize=10")
    assert (len(last["data"]), last["paging"]["hasMore"]) == (5, False)
    assert document(f"{address}/api/v1/assessments?page=9")["data"] == []


def test_users_by_offset(address: str) -> None:
    page = document(f"{address}/api/v1/users?offset=30&limit=10")
    assert [user["id"] for user in page["users"]] == [31, 32, 33, 34, 35]
    assert (page["has_more"], page["offset"], page["limit"], page["total"]) == (False, 30, 10, 35)
    assert document(f"{address}/api/v1/users?limit=34")["has_more"] is True


def test_events_by_cursor(address: str) -> None:
    seen, cursor, pages = [], "", 0
    while cursor is not None:
        page = document(f"{address}/api/v1/events?cursor={cursor}&limit=10")
        seen += [event["id"] for event in page["events"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert (seen, pages) == (list(range(1, 36)), 4)


def test_a_flaky_page_fails_once(address: str) -> None:
    url = f"{address}/api/v1/flaky?page=3&fail_on=1,3"
    for _ in range(2):
        assert [ask(url)[0] for _ in range(3)] == [500, 200, 200]
        assert ask(f"{address}/api/v1/flaky?page=2&fail_on=1,3")[0] == 200
        assert ask(f"{address}/api/v1/flaky/reset", method="POST")[0] == 200


@pytest.mark.parametrize(
    ("error_type", "status"), [("429", 429), ("500", 500), ("503", 503), ("auth", 401), ("403", 403), ("404", 404)]
)
def test_errors_on_demand(address: str, error_type: str, status: int) -> None:
    code, answer, headers = ask(f"{address}/api/v1/errors?error_type={error_type}&retry_after=7")
    assert (code, answer["error"]["status"]) == (status, status)
    assert headers.get("Retry-After") == ("7" if status in (429, 503) else None)
    assert document(f"{address}/api/v1/errors")["paging"]["total"] == 35
    assert ask(f"{address}/api/v1/errors?error_type=teapot")[0] == 400


@asynchronous
async def test_the_timeout_error_keeps_its_caller_waiting(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.15):
                await session.get(f"{address}/api/v1/errors?error_type=timeout")
        async with session.get(f"{address}/api/v1/errors?error_type=timeout&delay_seconds=0.05") as late:
            assert late.status == 504


def test_the_rate_limit_is_a_window(address: str) -> None:
    url = f"{address}/api/v1/rate-limited?requests_per_second=4"
    answers = [ask(url) for _ in range(6)]
    assert [answer[0] for answer in answers] == [200] * 4 + [429] * 2
    assert answers[-1][2]["Retry-After"] == "1"


def test_a_window_admits_again_when_its_second_is_over() -> None:
    now = [0.0]
    window = SlidingWindow(clock=lambda: now[0])
    assert [window.admit(2), window.admit(2), window.admit(2)] == [None, None, 1]
    now[0] = 0.999
    assert window.admit(2) == 1
    now[0] = 1.0
    assert [window.admit(2), window.admit(2), window.admit(2)] == [None, None, 1]


def test_heavy_items_have_the_asked_size_and_are_always_the_same(address: str) -> None:
    page = document(f"{address}/api/v1/heavy?pageSize=3&payload_kb=8")
    assert [len(item["payload"]) for item in page["data"]] == [8 * 1024] * 3
    assert (page["paging"]["total"], page["meta"]["payload_kb"]) == (100, 8)
    assert page == document(f"{address}/api/v1/heavy?pageSize=3&payload_kb=8")


def test_the_reference_chain(address: str) -> None:
    page = document(f"{address}/api/v1/reference-chain/items?pageSize=5&total=12&page=3&ref_mode=linked")
    assert [item["record_ref"] for item in page["data"]] == ["record-000011", "record-000012"]
    assert page["refs"]["chain"] == ["record-000011", "record-000012"]
    assert page["paging"]["hasMore"] is False
    whole = document(f"{address}/api/v1/reference-chain/items?pageSize=5&total=12&payload_kb=2")
    assert (whole["refs"]["mode"], len(whole["refs"]["chain"])) == ("inline", 5)
    assert len(whole["data"][0]["payload"]) == 2048
    detail = document(f"{address}/api/v1/reference-chain/detail/record-000011")
    assert detail["data"]["previous_ref"] == "record-000010"
    assert ask(f"{address}/api/v1/reference-chain/detail/none")[0] == 404


@pytest.mark.parametrize("patient", ["1", "2", "p-77"])
def test_patient_records_end_with_404(address: str, patient: str) -> None:
    url = f"{address}/api/v1/patient-records?patientId={patient}&pageSize=2"
    first = document(url)
    pages = first["meta"]["totalPages"]
    assert 2 <= pages <= 5
    assert len(first["entry"]) == 2
    assert document(f"{url}&page={pages}")["meta"]["hasMore"] is False
    assert ask(f"{url}&page={pages + 1}")[0] == 404
    assert document(url) == first


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("assessments", 2, 4),
        ("conditions", 1, 3),
        ("medications", 2, 3),
        ("vital_signs", 1, 1),
        ("demographics", 1, 1),
    ],
)
def test_each_kind_of_patient_data_has_its_pages(address: str, kind: str, low: int, high: int) -> None:
    seen = set()
    for patient in range(12):
        url = f"{address}/api/v1/patient/{kind}?patientId={patient}"
        first = document(url)
        pages = first["paging"]["total"]
        assert len(first["data"]) == 1
        assert first["paging"]["hasMore"] is (pages > 1)
        assert ask(f"{url}&page={pages + 1}")[0] == 404
        seen.add(pages)
    assert (min(seen), max(seen)) == (low, high)


def test_patient_endpoints_share_one_limit() -> None:
    with standin_process(rate_limit=3) as limited:
        urls = [
            f"{limited}/api/v1/patient/conditions?patientId=1",
            f"{limited}/api/v1/patient-records?patientId=1",
        ]
        answers = [ask(urls[number % 2]) for number in range(5)]
        assert [answer[0] for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[-1][2]["Retry-After"] == "1"
        assert ask(f"{limited}/api/v1/reset", method="POST")[0] == 200
        assert ask(urls[0])[0] == 200


def test_the_large_flows(address: str) -> None:
    ids = document(f"{address}/api/v1/mds/assessment_ids?patientId=5")["assessmentIds"]
    assert 1 <= len(ids) <= 4
    one = document(f"{address}/api/v1/mds/assessment/{ids[0]}")["data"]
    details = document(f"{address}/api/v1/pft/mds/details?assessmentIds={','.join(ids)}")
    assert (details["count"], details["data"][0]) == (len(ids), one)
    batch = document(f"{address}/api/v1/pft/batch/assessments?patientIds=1,2")
    pages = [document(f"{address}/api/v1/patient/assessments?patientId={one}")["paging"]["total"] for one in (1, 2)]
    assert (batch["patients"], batch["count"]) == (2, sum(pages))
    everyone = document(f"{address}/api/v1/mds/assessment_ids?patients=30&pageSize=20&page=2")
    assert everyone["paging"] == {"hasMore": False, "page": 2, "pageSize": 20, "total": 30}


@asynchronous
async def test_probes_count_how_many_run_at_once(address: str) -> None:
    base = f"{address}/api/v1/concurrency"
    async with aiohttp.ClientSession() as session:

        async def probe() -> None:
            async with session.get(f"{base}/probe?delay_seconds=0.1&label=a%20b") as answer:
                assert (await answer.json())["label"] == "a b"

        await session.post(f"{base}/reset")
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(probe())
        async with session.get(f"{base}/stats") as answer:
            stats = await answer.json()
    assert stats == {"started": 20, "completed": 20, "active": 0, "max_active": 20, "labels": {"a b": 20}}


def test_the_journal_keeps_what_ran(address: str) -> None:
    base = f"{address}/api/v1/journal"
    ask(f"{base}/reset", method="POST")
    for item in ("7", "8", "7"):
        ask(f"{base}/note?item={item}", method="POST")
    assert document(base) == {"total": 3, "distinct": 2, "repeated": {"7": 2}, "entries": ["7", "8", "7"]}
    assert ask(f"{base}/note")[0] == 400


def test_the_echo_shows_the_request(address: str) -> None:
    got = document(f"{address}/get?a=1&b=x%20y")
    assert got["args"] == {"a": "1", "b": "x y"}
    sent = b'{"n": [1]}'
    status, echoed, _ = ask(f"{address}/anything/deep/er", method="PUT", body=sent, **{"X-Trace": "7"})
    assert (status, echoed["method"], echoed["json"], echoed["headers"]["X-Trace"]) == (200, "PUT", {"n": [1]}, "7")
    assert ask(f"{address}/anything", method="POST", body=b"text")[1]["data"] == "text"


def test_the_placeholder_lists(address: str) -> None:
    posts, people = document(f"{address}/posts"), document(f"{address}/users")
    assert (len(posts), len(people)) == (100, 10)
    assert set(posts[0]) == {"userId", "id", "title", "body"}


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/nothing", "GET", 404),
        ("/api/v1/patient/shoes?patientId=1", "GET", 404),
        ("/api/v1/patient/conditions/1", "GET", 404),
        ("/health", "POST", 405),
        ("/api/v1/assessments?page=0", "GET", 400),
        ("/api/v1/assessments?page=many", "GET", 400),
        ("/api/v1/heavy?payload_kb=99999", "GET", 400),
        ("/api/v1/concurrency/probe?delay_seconds=nan", "GET", 400),
        ("/api/v1/patient/conditions", "GET", 400),
    ],
)
def test_a_wrong_request_is_told_so(address: str, path: str, method: str, status: int) -> None:
    code, answer, _ = ask(f"{address}{path}", method=method)
    assert code == status
    assert answer["error"]["message"]


def test_a_port_in_use_is_an_error_that_says_what_to_do(address: str) -> None:
    port = address.rpartition(":")[2]
    command = [sys.executable, "-m", "noetl.standin", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
