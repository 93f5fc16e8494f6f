"""Model → code: every template parsed once, atoms cut out of what the router evaluates, reachability as bit
sets.  The router never parses a template: `decide` works on the output of this module, cached by the
playbook's digest."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid
from noetl.core.expression import CompiledValue, Template
from noetl.core.playbook.checks.credentials import credential_uses
from noetl.core.playbook.checks.cycles import check_cycles
from noetl.core.playbook.checks.hidden import check_hidden
from noetl.core.playbook.checks.names import check_names
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep
from noetl.core.playbook.compiling.graph import reachability, warn_unreachable
from noetl.core.playbook.compiling.pools import pool_of
from noetl.core.playbook.compiling.server import ServerCompiler
from noetl.core.playbook.compiling.worker import WorkerCompiler, needs_of_tasks, scripts_of, task_mentions
from noetl.core.playbook.compiling.workload import compile_workload
from noetl.core.playbook.document import Findings
from noetl.core.playbook.keychain.compiling import (
    compile_keychain,
    keychain_needs,
    warn_unknown_entries,
)
from noetl.core.playbook.model import Mode, Playbook
from noetl.core.playbook.reading.root import parse_playbook
from noetl.core.playbook.storage.hints import EXTRA_NAMES
from noetl.core.playbook.storage.keeping import kept_labels, step_hints
from noetl.core.playbook.uses import playbook_uses, script_uses


def compile_playbook(text: str, *, file: str, kinds: frozenset[str]) -> CompiledPlaybook:
    """Parse, check and compile a document, or raise PlaybookInvalid."""
    with _unswept():
        parsed = parse_playbook(text, file=file, kinds=kinds)
        findings = Findings(parsed.document, warnings=list(parsed.warnings))
        return _compile(parsed.playbook, sha256_hex(text.encode("utf-8")), findings)


@contextmanager
def _unswept() -> Iterator[None]:
    """Compiling makes many small things and keeps them; to search them for garbage again and again, as the interpreter
    does while their number grows, takes a quarter of the time.  The limits of documents bound how many there can be."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compile(playbook: Playbook, digest: str, findings: Findings) -> CompiledPlaybook:
    server, worker = ServerCompiler(playbook, findings), WorkerCompiler(findings)
    keychain = compile_keychain(playbook, findings)
    workload = compile_workload(playbook, findings)
    reach = reachability(playbook)
    drafts: list[CompiledStep] = []
    for number, step in enumerate(playbook.steps):
        tasks = worker.tasks(step)
        warn_unknown_entries(step, tasks, keychain, findings)
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
                needs=keychain_needs(step, tasks, keychain) | needs_of_tasks(tasks),
                reaches=reach[number],
                loop=server.loop(number, step),
                timeout_seconds=step.timeout_seconds,
                scripts=scripts_of(step),
                admission=server.admission(number, step),
                hints=step_hints(step),
                pool=pool_of(task.kind for task in tasks),
            )
        )
    if findings.errors:
        raise PlaybookInvalid(findings.errors)
    warn_unreachable(playbook, reach, findings)
    check_names(playbook, drafts, workload, findings)
    check_hidden(playbook, drafts, server.expressions.values(), findings)
    check_cycles(playbook, drafts, findings)
    return CompiledPlaybook(
        digest=digest,
        playbook=playbook,
        steps={step.name: step for step in _finished(playbook, drafts, server)},
        expressions=server.expressions,
        workload=workload,
        warnings=tuple(findings.warnings),
        scripts=script_uses(playbook, findings.document),
        playbooks=playbook_uses(playbook, findings.document),
        keychain=keychain,
        credentials=credential_uses(playbook, drafts, findings.document),
    )


def _finished(playbook: Playbook, drafts: list[CompiledStep], server: ServerCompiler) -> Iterator[CompiledStep]:
    """The steps with what only the whole playbook can tell: who reads their results, and what of them."""
    own = [[mention for task in step.tasks for mention in task_mentions(task)] for step in drafts]
    asked = [mention for one in server.expressions.values() for mention in (one.value or one.template).mentions]
    everywhere = [mention for mentions in (*own, asked) for mention in mentions if not EXTRA_NAMES.isdisjoint(mention)]
    # The key of an expression begins with the number of its step.
    expressions = server.expressions.items()
    about_meta = {key.partition("/")[0] for key, one in expressions if _reads_meta(one.value or one.template)}
    for step, draft, mentions in zip(playbook.steps, drafts, own, strict=True):
        atoms = tuple(server.atoms[draft.name].values())
        kept = kept_labels(step, mentions, everywhere)
        yield replace(draft, atoms=atoms, kept=kept, reports_meta=str(draft.number) in about_meta)


def _reads_meta(template: Template | CompiledValue) -> bool:
    """Whether an expression reads `output.meta`, or the envelope as a whole."""
    return any(path[0] in ("output", "outcome") and path[1:2] in ((), ("meta",)) for path in template.mentions)
