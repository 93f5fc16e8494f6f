"""The stores of the clouds.  What opens them is found as each cloud's own tools find it: `AWS_…`, `AZURE_STORAGE_…`,
`GOOGLE_…`, or the identity of the machine."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, MemoryStore, ObjectStore, S3Store

from noetl.adapters.objects.blobs import Seal
from noetl.adapters.objects.buckets import ObjectBlobs
from noetl.adapters.objects.content import ContentPayloads
from noetl.core.errors import SettingsInvalid
from noetl.core.storage import AZURE, GCS, MEMORY, S3, Cloud

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

# Without these a store that is configured wrong is asked for three minutes before it is called unavailable.
RETRY: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
REGION_DEFAULT = "us-east-1"


def cloud_payloads(cloud: Cloud, *, seal: Seal | None = None) -> ContentPayloads:
    """Raises SettingsInvalid when the cloud's own settings cannot be read."""
    try:
        store = _store(cloud)
    except (BaseError, ValueError, OSError) as error:
        # The first line only: behind it stands how the client was configured.
        raise SettingsInvalid(f"the store {cloud.kind} cannot be set up: {str(error).splitlines()[0]}") from None
    where = f"the {'container' if cloud.kind == AZURE else 'bucket'} {cloud.bucket} ({cloud.kind})"
    return ContentPayloads(ObjectBlobs(store, where=where, prefix=cloud.prefix), name=cloud.kind, seal=seal)


def memory_payloads(*, seal: Seal | None = None) -> ContentPayloads:
    """The memory of this process.  Nothing outlives it: for tests."""
    return ContentPayloads(ObjectBlobs(MemoryStore(), where="the memory store"), name=MEMORY, seal=seal)


def _store(cloud: Cloud) -> ObjectStore:
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=5),
        "timeout": timedelta(seconds=120),
        "allow_http": (cloud.endpoint or "").startswith("http://"),
    }
    given: Any = {name.lower(): value for name, value in cloud.opened_by.items()} or None
    if cloud.kind == S3:
        # Path style: a compatible store rarely has a name for each bucket.
        found = {"endpoint": cloud.endpoint, "virtual_hosted_style_request": False} if cloud.endpoint else {}
        region = {"region": cloud.region} if cloud.region else {"region": REGION_DEFAULT} if cloud.endpoint else {}
        return S3Store(cloud.bucket, config=given, client_options=client, retry_config=RETRY, **found, **region)  # type: ignore[arg-type]
    if cloud.kind == AZURE:
        address = {"endpoint": cloud.endpoint} if cloud.endpoint else {}
        return AzureStore(cloud.bucket, config=given, client_options=client, retry_config=RETRY, **address)  # type: ignore[arg-type]
    assert cloud.kind == GCS
    return GCSStore(cloud.bucket, config=given, client_options=client, retry_config=RETRY)
