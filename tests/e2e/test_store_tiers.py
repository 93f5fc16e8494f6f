"""Servers and workers with a bucket: new payloads go there, older ones stay where they are and stay readable."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_servers import seaweed
from tests.support.server import Place, place
from tests.support.stores import SEAL, cloud, objects
from tests.support.yaml import one_step

LARGE = one_step("result = {'rows': [{'n': n, 'text': 'x' * 50} for n in range(3_000)]}")
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def server() -> Iterator[Place]:
    with place() as found:
        yield found


def large_references(server: Place, execution_id: str) -> list[dict[str, object]]:
    """Every reference that the events of an execution carry to a store of large payloads."""
    found: list[dict[str, object]] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if value.get("kind") == "payload" and value.get("store") not in (None, "db"):
                found.append(value)
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(server.events(execution_id))
    return found


def finished(server: Place) -> str:
    execution_id = server.submit(LARGE)
    final = server.finish(execution_id)
    assert final["status"] == "COMPLETED", final["error"]
    assert final["result"]["rows"][2_999] == {"n": 2_999, "text": "x" * 50}
    return execution_id


def test_after_a_switch_to_a_bucket_both_stores_are_read(
    server: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.start_server()
    worker = server.start_worker()
    old = finished(server)
    assert {one["store"] for one in large_references(server, old)} == {"file"}
    worker.end()
    first.end()

    subject = objects(cloud(seaweed(), monkeypatch, "s3", is_sealed=True), is_sealed=True)
    blobs = subject.durable._blobs  # type: ignore[union-attr]
    bucket = {**seaweed().environment, "NOETL_STORAGE_PREFIX": blobs._base.rstrip("/"), "NOETL_PAYLOAD_KEY": KEY}
    assert SEAL.key_id
    server.start_server(**bucket, NOETL_STORAGE_LOCAL_CACHE_DIR=str(tmp_path / "server"))
    # A worker that knows nothing of the bucket is told by the server where its payloads went.
    through = server.start_worker()
    mine = finished(server)
    assert {one["store"] for one in large_references(server, mine)} == {"s3"}
    through.end()
    # One that has the same settings goes straight to it.
    direct = server.start_worker(**bucket, NOETL_STORAGE_LOCAL_CACHE_DIR=str(tmp_path / "worker"))
    own = finished(server)
    assert {one["store"] for one in large_references(server, own)} == {"s3"}
    assert [path for path in (tmp_path / "worker").rglob("*") if path.is_file()]
    direct.end()
    # What was kept in files before is read from there.
    final = server.finish(old)
    assert final["result"]["rows"][7] == {"n": 7, "text": "x" * 50}
    assert b"xxxxxxxxxx" not in b"".join(
        path.read_bytes() for path in (tmp_path / "worker").rglob("*") if path.is_file()
    )


def test_a_server_with_a_wrong_bucket_does_not_start(server: Place) -> None:
    process = server.start("server", NOETL_PORT="0", **{**seaweed().environment, "NOETL_STORAGE_BUCKET": "nowhere"})
    assert process.wait(60) != 0
    assert "the payload store s3 cannot be used: the bucket nowhere (s3) refuses this process" in process.text()
    assert "Traceback" not in process.text()
