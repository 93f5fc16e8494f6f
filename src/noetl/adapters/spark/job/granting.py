"""Data sources of ours in the session of one job.

Credentials are in classes that are registered in the session of the job and sent by value: options, plans, Spark's UI
and its event log show none.  Payloads and the ledger are reached without one, and only those of the job's owner."""

from __future__ import annotations

from importlib import import_module

from pyspark.sql import SparkSession

from noetl.adapters.spark.sources.access import Access, Carried
from noetl.adapters.spark.sources.registering import register_sources
from noetl.ports.data.compute import SparkJob
from noetl.ports.data.sources import SourceAccess


def grant(spark: SparkSession, job: SparkJob) -> None:
    """Make the sources known to the session; programs may use them too."""
    access = Access(
        credentials={name: Carried(name, one.type, one.data) for name, one in job.credentials.items()},
        http_allow=job.http_allow,
        private_hosts=job.private_hosts,
        own=_own(job),
        own_refusal=job.sources.refusal,
    )
    register_sources(spark, access)


def _own(job: SparkJob) -> SourceAccess | None:
    """Made by a function that the worker names, as an entry point is: what opens stores is wired outside of here."""
    if job.sources.refusal is not None:
        return None
    module, _, name = job.sources.opened_by.partition(":")
    made: SourceAccess = getattr(import_module(module), name)(
        job.sources.data, tenant_id=job.tenant_id, organization_id=job.organization_id
    )
    return made
