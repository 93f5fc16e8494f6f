"""What a worker works with, wired once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from noetl.core.secret import Secret
from noetl.engine.payloads import Payloads
from noetl.engine.permits.taking import Permits
from noetl.engine.playbooks import Playbooks
from noetl.engine.work.calling.tokens import TokenCache
from noetl.engine.work.jobs import JobCounts
from noetl.engine.work.logs.shipper import WorkerLogs
from noetl.ports.clock import Clock
from noetl.ports.scripts import ScriptFiles
from noetl.ports.secrets import CredentialSource
from noetl.ports.session import WorkerSession
from noetl.ports.tool import Renderer, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    session: WorkerSession
    playbooks: Playbooks
    payloads: Payloads
    tools: Mapping[str, Tool]
    renderer: Renderer
    clock: Clock
    credentials: CredentialSource
    environment: Mapping[str, Secret[str]] = field(default_factory=dict)
    """Variables of this process that playbooks may use as credentials."""
    tokens: TokenCache = field(default_factory=TokenCache)
    pick_below: Callable[[int], int] | None = None
    """Chance, for the filter `random`: an index below a number."""
    scripts: ScriptFiles | None = None
    """Files of this machine that tasks may run; those that are pinned need none."""
    permits: Permits | None = None
    """Where permits of shared limits come from; without it no task may have a limit."""
    job_counts: JobCounts = field(default_factory=JobCounts)
    logs: WorkerLogs | None = None
    """Where tools say what happens; None when nobody listens."""
    shares_frame_rows: bool = True
    """Whether tables that rows of loops give are put into shared memory beside their durable copy."""
