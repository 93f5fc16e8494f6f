"""What a worker works with, wired once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.engine.payloads import Payloads
from noetl.engine.playbooks import Playbooks
from noetl.ports.clock import Clock
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
