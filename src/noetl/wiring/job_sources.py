"""How data sources inside a Spark job reach payloads and the ledger: by the files and the socket of a home on this
machine, which need no secret.  Code of users runs beside them, so they are given none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from noetl.adapters.crypto.keys import payload_key
from noetl.core.storage import MEMORY, Cloud, Storage
from noetl.ports.data.compute import JobSources
from noetl.settings import Settings, cloud_variables
from noetl.wiring.sources import SettingsAccess

_OPENED_BY = f"{__name__}:job_access"
_INSTEAD = "hand the rows to the job by `inputs:`, and give back what it shall keep as its result"
# What says where something is and opens nothing.
_HARMLESS = frozenset(("AWS_REGION", "AWS_DEFAULT_REGION", "AZURE_STORAGE_ACCOUNT_NAME"))


def job_sources(settings: Settings, *, has_home: bool, has_database: bool) -> JobSources:
    """`has_home` says that the payloads of the settings are those of the control plane, `has_database` that its
    Postgres is the private one of this home."""
    reason = None if has_home else "this worker knows its server by an address only, and programs do not get its token"
    if payload_key(settings.payload_key, settings.payload_key_file) is not None:
        reason = "payloads are sealed, and programs do not get the key"
    if settings.storage.tier == MEMORY:
        reason = "payloads are in the memory of another process"
    storage = _without_keys(settings.storage)
    if storage is None:
        reason = (
            f"what opens the store {settings.storage.tier} is in the worker's environment, which programs do not get"
        )
    if reason is not None or storage is None:
        return JobSources(refusal=f"{reason}; {_INSTEAD}")
    data = {
        "home": str(settings.home),
        "storage": asdict(storage),
        "postgres_os_user": settings.postgres_os_user,
        "has_database": has_database,
    }
    return JobSources(opened_by=_OPENED_BY, data=data)


def job_access(data: Mapping[str, Any], *, tenant_id: str, organization_id: str) -> SettingsAccess:
    """In the driver."""
    storage = dict(data["storage"])
    cloud = storage.pop("cloud")
    why_not = f"programs do not get the login of the control plane's Postgres; {_INSTEAD}"
    return SettingsAccess(
        tenant_id=tenant_id,
        organization_id=organization_id,
        home=Path(data["home"]),
        storage=Storage(**storage, cloud=None if cloud is None else Cloud(**cloud)),
        key=None,
        postgres_dsn=None,
        postgres_os_user=data["postgres_os_user"],
        server_url=None,
        token=None,
        is_confined=True,
        database_refusal=None if data["has_database"] else why_not,
    )


def _without_keys(storage: Storage) -> Storage | None:
    """None when new payloads would go to a cloud that only a key in the environment opens."""
    cloud = storage.cloud
    if cloud is None:
        return storage
    variables = cloud_variables(cloud.kind)
    if variables.keys() <= _HARMLESS:
        return replace(storage, cloud=replace(cloud, opened_by=variables))
    return None if storage.tier == cloud.kind else replace(storage, cloud=None)
