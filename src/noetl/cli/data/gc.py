"""`noetl gc`: delete payloads that nothing names, or say which."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
from dataclasses import replace

from noetl.cli.attach import attach
from noetl.cli.text import note, out
from noetl.core.collection.plan import DAY, GRACE_HOURS_MIN, HOUR, MARGIN_SECONDS, Policy
from noetl.core.errors import HostUnavailable, SettingsInvalid
from noetl.engine.collecting.report import DELETED, FATES, KEPT, NOMINATED, RENEWED, WAITING, YOUNG, Report
from noetl.settings import Settings
from noetl.wiring.databases import control_dsn, embedded_postgres, prepare_database
from noetl.wiring.stores import collect_payloads

_HEAD = ("TENANT", "ORGANIZATION", "STORE", "TYPE", "FATE", "COUNT", "BYTES", "OLDEST")
_SAYS = {
    YOUNG: "too young to be judged",
    NOMINATED: "now a candidate, to be looked at again after the grace",
    WAITING: "a candidate whose grace is not over",
    DELETED: "deleted",
    RENEWED: "used again meanwhile, and kept",
    KEPT: "kept, because a payload of the same owner cannot be read",
}
_WOULD = {**_SAYS, NOMINATED: "would become a candidate", DELETED: "would be deleted"}


def gc(arguments: argparse.Namespace, settings: Settings) -> int:
    policy = _policy(arguments, settings)
    how = {"is_dry_run": arguments.dry_run, "forgets_missing": arguments.forget_missing}
    if settings.postgres_dsn is not None:
        report = asyncio.run(_collect(settings, settings.postgres_dsn, policy, how))
    else:
        report = _at_home(settings, policy, how)
    if arguments.json:
        out(json.dumps(report.to_json()))
    else:
        _print(report)
    return 0


def _policy(arguments: argparse.Namespace, settings: Settings) -> Policy:
    hours = settings.gc_grace_hours if arguments.grace is None else arguments.grace
    if not 0 <= hours < float("inf"):
        raise SettingsInvalid(f"--grace must be a number of hours, not {hours:g}")
    if hours < GRACE_HOURS_MIN and not arguments.dry_run:
        raise SettingsInvalid(
            f"--grace {hours:g} is too short: for {GRACE_HOURS_MIN:g} h an event may be on its way that names a "
            "payload, which would be lost; with --dry-run any grace can be looked at"
        )
    ttl = settings.gc_ttl_days * DAY
    if ttl < hours * HOUR + MARGIN_SECONDS:
        raise SettingsInvalid(
            f"NOETL_GC_TTL_DAYS is {settings.gc_ttl_days} and the grace is {hours:g} h: what nothing names must not be "
            f"deleted before its grace is over; the TTL must be {MARGIN_SECONDS / HOUR:g} h longer than the grace"
        )
    return Policy(grace_seconds=hours * HOUR, ttl_seconds=ttl)


def _at_home(settings: Settings, policy: Policy, how: dict[str, bool]) -> Report:
    """Beside the host of this home, or as one that resumes nothing: then the private Postgres runs meanwhile."""
    attachment = attach(replace(settings, server_url=None), resume=False)
    try:
        server = embedded_postgres(settings).running()
        if server is None:
            raise HostUnavailable(f"the database of {settings.home} does not run: try again")
        return asyncio.run(collect_payloads(settings, control_dsn(server), policy, **how))
    finally:
        attachment.leave()


async def _collect(settings: Settings, database: str, policy: Policy, how: dict[str, bool]) -> Report:
    await prepare_database(settings, database, is_embedded=False)
    return await collect_payloads(settings, database, policy, **how)


def _print(report: Report) -> None:
    rows = [_HEAD]
    for kind in sorted(report.heaps):
        heap = report.heaps[kind]
        rows.append(
            (
                *(kind.owner.tenant_id, kind.owner.organization_id, kind.store, kind.media_type or "-", kind.fate),
                *(f"{heap.count:,}", f"{heap.bytes:,}", _moment(heap.oldest_at)),
            )
        )
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            out("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    says = _WOULD if report.is_dry_run else _SAYS
    for fate in FATES:
        heap = report.total([fate])
        if heap.count:
            out(f"{fate}: {heap.count:,} payloads, {heap.bytes:,} bytes: {says[fate]}")
    if report.leftovers.count:
        verb = "would be removed" if report.is_dry_run else "removed"
        out(f"unfinished uploads: {report.leftovers.count:,}, {report.leftovers.bytes:,} bytes: {verb}")
    out(f"{report.held:,} payloads, {report.reachable:,} of them reachable; {report.payloads_read:,} were read")
    for text in report.damaged:
        note(f"unreadable: {text}")
    if report.damaged:
        note(
            "what these payloads name is not known, and nothing of their tenants is deleted: restore them, or set the "
            "store and the key that they need; --forget-missing takes missing ones for lost"
        )
    if report.is_dry_run:
        note("dry run: nothing was changed")


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")[:-6] + "Z"
