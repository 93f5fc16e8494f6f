"""Model → code: every template parsed once, atoms cut out of what the router evaluates, reachability as bit
sets.  The router never parses a template: `decide` works on the output of this module, cached by the
playbook's digest."""

from __future__ import annotations

from dataclasses import replace

from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep
from noetl.core.playbook.compiling.graph import reachability, warn_unreachable
from noetl.core.playbook.compiling.server import ServerCompiler
from noetl.core.playbook.compiling.worker import WorkerCompiler, needs_of_tasks
from noetl.core.playbook.document import Findings
from noetl.core.playbook.model import Mode, Playbook
from noetl.core.playbook.reading.root import parse_playbook


def compile_playbook(text: str, *, file: str, kinds: frozenset[str]) -> CompiledPlaybook:
    """Parse, check and compile a document, or raise PlaybookInvalid."""
    parsed = parse_playbook(text, file=file, kinds=kinds)
    findings = Findings(parsed.document, warnings=list(parsed.warnings))
    return _compile(parsed.playbook, sha256_hex(text.encode("utf-8")), findings)


def _compile(playbook: Playbook, digest: str, findings: Findings) -> CompiledPlaybook:
    server, worker = ServerCompiler(playbook, findings), WorkerCompiler(findings)
    reach = reachability(playbook)
    drafts: list[CompiledStep] = []
    for number, step in enumerate(playbook.steps):
        tasks = worker.tasks(step)
        arcs = step.next.arcs if step.next else ()
        drafts.append(
            CompiledStep(
                name=step.name,
                number=number,
                tasks=tasks,
                is_pipeline=step.is_pipeline,
                has_next=step.next is not None,
                mode=step.next.mode if step.next else Mode.EXCLUSIVE,
                arcs=tuple(server.arc(step, f"{number}/arc/{n}", arc) for n, arc in enumerate(arcs)),
                sets=server.sets(step, step.set, f"{number}/set", step.place),
                # Not known before every step is compiled: a later one may read this one's result.
                atoms=(),
                needs=needs_of_tasks(tasks),
                reaches=reach[number],
                loop=server.loop(number, step),
                timeout_seconds=step.timeout_seconds,
            )
        )
    if findings.errors:
        raise PlaybookInvalid(findings.errors)
    warn_unreachable(playbook, reach, findings)
    return CompiledPlaybook(
        digest=digest,
        playbook=playbook,
        steps={step.name: replace(step, atoms=tuple(server.atoms[step.name].values())) for step in drafts},
        expressions=server.expressions,
        warnings=tuple(findings.warnings),
    )
