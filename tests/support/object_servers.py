"""Real object stores for tests: SeaweedFS speaks S3, Azurite speaks Azure.  Each is started once and ends with the
test run."""

from __future__ import annotations

import atexit
import base64
import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_SECONDS_MAX = 60.0
BUCKET = "payloads"
ACCESS_KEY, SECRET_KEY = "noetl-tests-access", "noetl-tests-secret"
AZURE_ACCOUNT = "noetltests"
AZURE_KEY = base64.b64encode(b"an azurite account of the tests.").decode()


# Not silently: `make setup` says so, and the name of the mark is in the report.
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Azurite needs node, which is not installed")


@dataclass(frozen=True, slots=True)
class ObjectServer:
    """Where a store listens, and the environment that a process of ours needs to use it."""

    endpoint: str
    environment: Mapping[str, str]


@cache
def seaweed() -> ObjectServer:
    weed = Path(sys.executable).with_name("weed")
    assert weed.exists(), "SeaweedFS is not installed: run `make setup`"
    folder = _folder("noetl-weed-")
    identity = {
        "name": "noetl",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": [f"{action}:{BUCKET}" for action in ("Admin", "Read", "Write", "List")],
    }
    # One volume for a start: it makes seven at once, and the first write waits for them.
    (folder / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3 = _ports(4)
    # The master first: what asks it too early asks again only after five seconds.
    own = {
        "port": master,
        "mdir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "volumeSizeLimitMB": 64,
        "electionTimeout": "100ms",
        "heartbeatInterval": "50ms",
    }
    process = _start([str(weed), "master", *_options(own)], folder)
    _await(lambda: b'"IsLeader":true' in _get(master, "/cluster/status"), process, folder, "SeaweedFS")
    others = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master": "false",
        "master.peers": f"127.0.0.1:{master}",
        "volume.port": volume,
        "volume.max": 32,
        "filer.port": filer,
        "s3.port": s3,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
    }
    process = _start([str(weed), "server", "-s3", *_options(others)], folder)
    endpoint = f"http://127.0.0.1:{s3}"
    _await(lambda: _s3_bucket(s3) == 200, process, folder, "SeaweedFS")
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "NOETL_DEFAULT_STORE_TIER": "s3",
        "NOETL_STORAGE_BUCKET": BUCKET,
        "NOETL_STORAGE_ENDPOINT": endpoint,
    }
    return ObjectServer(endpoint, environment)


@cache
def azurite() -> ObjectServer:
    program = ROOT / "tests" / "servers" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node = shutil.which("node")
    assert node is not None, "Azurite needs node 20 or newer: install it, then run `make setup`"
    assert program.exists(), "Azurite is not installed: run `make setup`"
    folder = _folder("noetl-azurite-")
    (port,) = _ports(1)
    command = [node, str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    process = _start(command, folder, AZURITE_ACCOUNTS=f"{AZURE_ACCOUNT}:{AZURE_KEY}")
    _await(lambda: _azure_container(port) in (201, 409), process, folder, "Azurite")
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    environment = {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "NOETL_DEFAULT_STORE_TIER": "azure",
        "NOETL_STORAGE_BUCKET": BUCKET,
        "NOETL_STORAGE_ENDPOINT": endpoint,
    }
    return ObjectServer(endpoint, environment)


def _options(named: Mapping[str, object]) -> list[str]:
    return [f"-{name}={value}" for name, value in named.items()]


def _folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _start(command: list[str], folder: Path, **extra: str) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("NOETL_", "AWS_", "AZURE_"))}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**environment, **extra},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    # Nothing in it is worth a clean end, and SeaweedFS takes its time for one.
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _await(is_up: object, process: subprocess.Popen[bytes], folder: Path, name: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{name} ended: {(folder / 'log').read_text(errors='replace')[-2_000:]}"
        try:
            if is_up():  # type: ignore[operator]
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    raise AssertionError(f"{name} does not answer: {(folder / 'log').read_text(errors='replace')[-2_000:]}")


def _ports(count: int) -> list[int]:
    """Free ports; SeaweedFS takes the one 10 000 above each of them, too."""
    found: list[socket.socket] = []
    numbers: list[int] = []
    try:
        for number in range(20_000 + os.getpid() % 10_000, 45_000):
            pair = [socket.socket(), socket.socket()]
            try:
                for one, port in zip(pair, (number, number + 10_000), strict=True):
                    one.bind(("127.0.0.1", port))
            except OSError:
                for one in pair:
                    one.close()
                continue
            found += pair
            numbers.append(number)
            if len(numbers) == count:
                return numbers
    finally:
        for one in found:
            one.close()
    raise AssertionError("no free ports")


def _s3_bucket(port: int) -> int:
    """Create the bucket, by a request that is signed as Amazon's version 4 demands."""
    moment = time.gmtime()
    stamp, day = time.strftime("%Y%m%dT%H%M%SZ", moment), time.strftime("%Y%m%d", moment)
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": f"127.0.0.1:{port}", "x-amz-content-sha256": empty, "x-amz-date": stamp}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"PUT\n/{BUCKET}\n\n{lines}\n{names}\n{empty}"
    scope = f"{day}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = b"AWS4" + SECRET_KEY.encode()
    for part in (day, "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={signature}"
    return _put(port, f"/{BUCKET}", {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"})


def _azure_container(port: int) -> int:
    """Create the container, by a request that is signed with the account's key."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    path = f"/{AZURE_ACCOUNT}/{BUCKET}"
    lines = f"x-ms-date:{date}\nx-ms-version:{version}\n/{AZURE_ACCOUNT}{path}\nrestype:container"
    text = "PUT" + "\n" * 12 + lines
    key = base64.b64decode(AZURE_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
    return _put(port, f"{path}?restype=container", headers)


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def _put(port: int, path: str, headers: Mapping[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("PUT", path, headers=dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()
