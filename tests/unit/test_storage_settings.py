"""Which stores the settings name, and what is refused before anything starts."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from noetl.core.errors import SettingsInvalid
from noetl.core.storage import Cloud, Storage
from noetl.settings import read_settings

S3 = {"NOETL_DEFAULT_STORE_TIER": "s3", "NOETL_STORAGE_BUCKET": "payloads"}
ROOT = Path(__file__).parents[2]
KEY = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Storage()),
        ({"NOETL_DEFAULT_STORE_TIER": "file"}, Storage()),
        ({"NOETL_DEFAULT_STORE_TIER": "memory"}, Storage(tier="memory")),
        (S3, Storage(tier="s3", cloud=Cloud(kind="s3", bucket="payloads"))),
        ({**S3, "NOETL_DEFAULT_STORE_TIER": "MinIO"}, Storage(tier="s3", cloud=Cloud(kind="s3", bucket="payloads"))),
        (
            {"NOETL_STORAGE_CLOUD_TIER": "gcs", "NOETL_STORAGE_BUCKET": "b.c_d"},
            Storage(tier="gcs", cloud=Cloud(kind="gcs", bucket="b.c_d")),
        ),
        (
            {
                **S3,
                "NOETL_STORAGE_PREFIX": "/team/noetl/",
                "NOETL_STORAGE_ENDPOINT": "http://127.0.0.1:8333/",
                "NOETL_STORAGE_REGION": "eu-central-1",
            },
            Storage(
                tier="s3",
                cloud=Cloud(
                    kind="s3",
                    bucket="payloads",
                    prefix="team/noetl",
                    endpoint="http://127.0.0.1:8333",
                    region="eu-central-1",
                ),
            ),
        ),
        # New payloads to files, those of the bucket stay readable.
        (
            {**S3, "NOETL_DEFAULT_STORE_TIER": "file", "NOETL_STORAGE_CLOUD_TIER": "s3"},
            Storage(tier="file", cloud=Cloud(kind="s3", bucket="payloads")),
        ),
        (
            {"NOETL_STORAGE_LOCAL_CACHE_DIR": "/var/cache/noetl", "NOETL_STORAGE_LOCAL_CACHE_GB": "0.5"},
            Storage(cache_dir="/var/cache/noetl", cache_bytes=512 * 1024**2),
        ),
    ],
)
def test_stores_are_named_by_settings(environment: dict[str, str], expected: Storage) -> None:
    assert read_settings(environment).storage == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NOETL_DEFAULT_STORE_TIER": "tape"}, "NOETL_DEFAULT_STORE_TIER must be one of file, s3"),
        ({"NOETL_STORAGE_CLOUD_TIER": "file"}, "NOETL_STORAGE_CLOUD_TIER must be one of s3"),
        ({"NOETL_DEFAULT_STORE_TIER": "s3"}, "NOETL_STORAGE_BUCKET must name the bucket"),
        ({**S3, "NOETL_STORAGE_BUCKET": "no/slash"}, "NOETL_STORAGE_BUCKET"),
        ({**S3, "NOETL_STORAGE_CLOUD_TIER": "gcs"}, "name one cloud"),
        ({**S3, "NOETL_STORAGE_PREFIX": "a/../b"}, "NOETL_STORAGE_PREFIX"),
        ({**S3, "NOETL_STORAGE_PREFIX": "a//b"}, "NOETL_STORAGE_PREFIX"),
        ({**S3, "NOETL_STORAGE_ENDPOINT": "ftp://host"}, "NOETL_STORAGE_ENDPOINT"),
        ({**S3, "NOETL_STORAGE_ENDPOINT": "http://user:s3cret-canary@host"}, "NOETL_STORAGE_ENDPOINT"),
        ({**S3, "NOETL_STORAGE_ENDPOINT": "http://host:99999"}, "NOETL_STORAGE_ENDPOINT"),
        ({**S3, "NOETL_STORAGE_REGION": "Middle Earth"}, "NOETL_STORAGE_REGION"),
        ({**S3, "NOETL_DEFAULT_STORE_TIER": "azure", "NOETL_STORAGE_REGION": "eu-west-1"}, "NOETL_STORAGE_REGION"),
        ({**S3, "NOETL_DEFAULT_STORE_TIER": "gcs", "NOETL_STORAGE_ENDPOINT": "http://host"}, "has one address"),
        ({"NOETL_STORAGE_BUCKET": "payloads"}, "no cloud is named"),
        ({"NOETL_STORAGE_LOCAL_CACHE_DIR": "cache"}, "NOETL_STORAGE_LOCAL_CACHE_DIR"),
        ({"NOETL_STORAGE_LOCAL_CACHE_DIR": "/"}, "NOETL_STORAGE_LOCAL_CACHE_DIR"),
        ({"NOETL_STORAGE_LOCAL_CACHE_GB": "much"}, "NOETL_STORAGE_LOCAL_CACHE_GB"),
        ({"NOETL_STORAGE_LOCAL_CACHE_GB": "0"}, "NOETL_STORAGE_LOCAL_CACHE_GB"),
        ({"NOETL_PAYLOAD_KEY": "canary"}, "NOETL_PAYLOAD_KEY must be the base64"),
        ({"NOETL_PAYLOAD_KEY": KEY, "NOETL_PAYLOAD_KEY_FILE": "key"}, "not both"),
    ],
)
def test_a_wrong_setting_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsInvalid, match=message) as raised:
        read_settings(environment)
    assert "canary" not in str(raised.value)


def test_the_guide_names_settings_that_exist_and_its_example_is_accepted() -> None:
    guide = (ROOT / "docs" / "guide" / "storage.md").read_text()
    sources = "".join((ROOT / "src" / "noetl" / name).read_text() for name in ("settings.py", "core/storage.py"))
    for variable in set(re.findall(r"`(NOETL_[A-Z_]+)", guide)):
        name = variable.removesuffix("_FILE").removeprefix("NOETL_STORAGE_")
        assert name in sources, variable
    block = re.search(r"^```ini\n(.*?)^```", guide, re.S | re.M)
    assert block is not None
    environment = dict(line.split("=", 1) for line in block[1].splitlines())
    storage = read_settings(environment).storage
    assert (storage.tier, storage.cache_dir) == ("s3", environment["NOETL_STORAGE_LOCAL_CACHE_DIR"])
    assert storage.cloud is not None
    assert storage.cloud.prefix == environment["NOETL_STORAGE_PREFIX"]
