"""Which stores hold payloads: read from the names of settings, checked, never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from noetl.core.errors import SettingsInvalid

FILE, MEMORY, S3, GCS, AZURE = "file", "memory", "s3", "gcs", "azure"
CLOUDS = (S3, GCS, AZURE)
LARGE_STORES = (FILE, *CLOUDS, MEMORY)
"""Every name that a reference to a payload outside of the database may carry."""

CACHE_BYTES_DEFAULT = 10 * 1024**3
_ALIASES = {"minio": S3, "seaweedfs": S3}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}")
_PREFIX = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,99}(?:/[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,99}){0,9}")
_REGION = re.compile(r"[a-z0-9-]{2,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One bucket of an object store.  What opens it is found by the cloud's own rules, not here."""

    kind: str
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    opened_by: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Variables of the cloud's own, for a process that does not have them in its environment."""


CREDENTIAL_VARIABLES: Mapping[str, tuple[str, ...]] = {
    S3: ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"),
    AZURE: ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY"),
    GCS: ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
}
"""What opens each cloud when it stands in the environment; the identity of a machine needs none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """`tier` takes new payloads; a cloud that is not the tier is only read."""

    tier: str = FILE
    cloud: Cloud | None = None
    cache_dir: str | None = None
    """The disk cache in front of a store that is not on this machine."""
    cache_bytes: int = CACHE_BYTES_DEFAULT


def storage_from(source: Mapping[str, str]) -> Storage:
    """Raises SettingsInvalid, which names the variable."""
    cloud_tier = _tier(source, "NOETL_STORAGE_CLOUD_TIER", CLOUDS)
    tier = _tier(source, "NOETL_DEFAULT_STORE_TIER", LARGE_STORES) or cloud_tier or FILE
    if tier in CLOUDS and cloud_tier not in (None, tier):
        raise SettingsInvalid(
            f"NOETL_DEFAULT_STORE_TIER is {tier} and NOETL_STORAGE_CLOUD_TIER is {cloud_tier}: one bucket can be "
            "configured, so name one cloud"
        )
    kind = tier if tier in CLOUDS else cloud_tier
    directory = source.get("NOETL_STORAGE_LOCAL_CACHE_DIR") or None
    if directory is not None and (not directory.startswith("/") or directory.rstrip("/") == ""):
        raise SettingsInvalid("NOETL_STORAGE_LOCAL_CACHE_DIR must be an absolute folder below the root")
    return Storage(tier=tier, cloud=_cloud(source, kind), cache_dir=directory, cache_bytes=_cache_bytes(source))


def _tier(source: Mapping[str, str], variable: str, allowed: tuple[str, ...]) -> str | None:
    text = source.get(variable, "").strip().lower()
    if not text:
        return None
    name = _ALIASES.get(text, text)
    if name not in allowed:
        raise SettingsInvalid(f"{variable} must be one of {', '.join((*allowed, *_ALIASES))}, not {text!r}")
    return name


def _cloud(source: Mapping[str, str], kind: str | None) -> Cloud | None:
    if kind is None:
        for variable in ("BUCKET", "PREFIX", "ENDPOINT", "REGION"):
            if source.get(f"NOETL_STORAGE_{variable}"):
                raise SettingsInvalid(
                    f"NOETL_STORAGE_{variable} is set, but no cloud is named: set NOETL_DEFAULT_STORE_TIER to "
                    f"{' or '.join(CLOUDS)}"
                )
        return None
    bucket = source.get("NOETL_STORAGE_BUCKET", "")
    if not _BUCKET.fullmatch(bucket):
        raise SettingsInvalid(
            f"NOETL_STORAGE_BUCKET must name the bucket (in Azure: the container) of the store {kind}: letters, "
            f"digits, '.', '_' and '-'"
        )
    prefix = source.get("NOETL_STORAGE_PREFIX", "").strip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SettingsInvalid(
            "NOETL_STORAGE_PREFIX must be names with '/' between them, each of letters, digits, '.', '_', '=' and '-'"
        )
    region = source.get("NOETL_STORAGE_REGION") or None
    if region is not None and (kind != S3 or not _REGION.fullmatch(region)):
        raise SettingsInvalid("NOETL_STORAGE_REGION must be the region of an s3 bucket, such as eu-central-1")
    return Cloud(kind=kind, bucket=bucket, prefix=prefix, endpoint=_endpoint(source, kind), region=region)


def _endpoint(source: Mapping[str, str], kind: str) -> str | None:
    text = source.get("NOETL_STORAGE_ENDPOINT")
    if not text:
        return None
    if kind == GCS:
        raise SettingsInvalid("NOETL_STORAGE_ENDPOINT is for s3 and azure: the store gcs has one address")
    parts = urlsplit(text)
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment or "@" in parts.netloc:
        # Not quoted: somebody may have put a password into it.
        raise SettingsInvalid("NOETL_STORAGE_ENDPOINT must be http://host:port or https://host:port, without user")
    return text.rstrip("/")


def _cache_bytes(source: Mapping[str, str]) -> int:
    text = source.get("NOETL_STORAGE_LOCAL_CACHE_GB")
    if not text:
        return CACHE_BYTES_DEFAULT
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.001 <= size <= 1_000_000:
        raise SettingsInvalid(f"NOETL_STORAGE_LOCAL_CACHE_GB must be between 0.001 and 1000000, not {text!r}")
    return int(size * 1024**3)
