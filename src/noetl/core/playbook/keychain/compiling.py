"""The templates of keychain entries, which entries a task reads, and what a command must carry for them.

An entry is made in the worker, from the workload and from entries that stand before it; nothing else of an execution
is known to it, so that two executions with the same inputs may share what it gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from operator import or_

from noetl.core.errors import NoetlError, TemplateInvalid
from noetl.core.expression import CompiledValue, Template, broken_template, compile_value, literal_template
from noetl.core.playbook.compiled import CompiledEntry, CompiledTask
from noetl.core.playbook.compiling.texts import texts_in
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.keychain.secrecy import AUTH_FIELDS, KEYCHAIN
from noetl.core.playbook.model import KeychainEntry, Playbook, Step
from noetl.core.playbook.needs import Needs, mentions_of, needs_of

# Names that exist in a running step and not here.
_OF_A_RUN = frozenset(("ctx", "steps", "iter", "output", "outcome", "result", "response", "event", "input"))


def compile_keychain(playbook: Playbook, findings: Findings) -> dict[str, CompiledEntry]:
    steps = frozenset(step.name for step in playbook.steps) - frozenset(playbook.workload)
    compiled: dict[str, CompiledEntry] = {}
    names = [entry.name for entry in playbook.keychain]
    for number, entry in enumerate(playbook.keychain):
        fields = _fields(entry, findings)
        reads = _reads(entry, fields, names[:number], names, findings)
        for mention in sorted(fields.mentions):
            if mention[0] in _OF_A_RUN | steps:
                message = f"keychain entry {entry.name!r} reads {'.'.join(mention)!r}: only the workload is known there"
                findings.warn("keychain_names", message, entry.place)
        compiled[entry.name] = CompiledEntry(
            name=entry.name,
            kind=entry.kind,
            is_local=entry.scope == "local",
            fields=fields,
            reads=frozenset(reads),
            needs=_together([needs_of(mentions_of(fields)), *(compiled[name].needs for name in reads)]),
        )
    return compiled


def _fields(entry: KeychainEntry, findings: Findings) -> CompiledValue:
    def broken(source: str, inside: Path, error: NoetlError) -> Template:
        note = findings.warn if isinstance(error, TemplateInvalid) else findings.error
        place = (*entry.place, *inside)
        note(error.code, f"keychain entry {entry.name!r}, field {'.'.join(map(str, inside))!r}: {error}", place)
        return broken_template(source, str(error))

    return compile_value(dict(entry.config), instead=broken)


def _reads(
    entry: KeychainEntry, fields: CompiledValue, before: list[str], names: list[str], findings: Findings
) -> set[str]:
    """The entries that this one is made of.  They stand before it, so that there is no circle."""
    reads = set()
    for name in _named(fields):
        if name is None:
            reads.update(before)
        elif name in before:
            reads.add(name)
        elif name in names:
            message = f"keychain entry {entry.name!r} reads {name!r}, which is not declared before it"
            findings.error("keychain_order", message, entry.place)
        elif (KEYCHAIN, name) in {mention[:2] for mention in fields.mentions}:
            _warn_unknown(f"keychain entry {entry.name!r}", name, names, entry.place, findings=findings, step=None)
    return reads


def _named(value: CompiledValue) -> Iterator[str | None]:
    """The names by which a value asks for entries; None when only its evaluation knows."""
    for mention in mentions_of(value):
        if mention[0] == KEYCHAIN:
            yield mention[1] if len(mention) > 1 else None
    yield from value.tokens


# --- tasks -------------------------------------------------------------------------------------------------


def entries_read(task: CompiledTask, keychain: Mapping[str, CompiledEntry]) -> frozenset[str]:
    """The entries that a task may ask for, by a template or as its `auth`."""
    if not keychain:
        return frozenset()
    # The text of a script is a template that is not known here.
    asked: set[str | None] = {None} if task.has_script else set()
    for name, value in (*task.fields.items(), ("input", task.input)):
        asked.update(_named(value))
        if name in AUTH_FIELDS:
            asked.update(_auth_names(value))
    return _known(asked, keychain)


def _auth_names(auth: CompiledValue) -> Iterator[str | None]:
    """Every text below `auth` may be a name; what is a template may become any."""
    for path, text in texts_in(auth.source):
        yield text.strip() if auth.template_at(path).kind == "literal" else None


def _known(asked: Collection[str | None], keychain: Mapping[str, CompiledEntry]) -> frozenset[str]:
    return frozenset(keychain) if None in asked else frozenset(name for name in keychain if name in asked)


def keychain_needs(step: Step, tasks: Iterable[CompiledTask], keychain: Mapping[str, CompiledEntry]) -> Needs:
    """What the commands of a step must carry so that their worker can make the entries."""
    read = {name for task in tasks for name in entries_read(task, keychain)}
    if step.loop is not None and step.loop.cursor is not None:
        asked = set(_auth_names(compile_value(step.loop.cursor.auth, instead=_literal)))
        read |= _known(asked, keychain)
    return _together([keychain[name].needs for name in read])


def warn_unknown_entries(
    step: Step, tasks: Iterable[CompiledTask], keychain: Mapping[str, CompiledEntry], findings: Findings
) -> None:
    """A task that reads an entry which nobody declared fails when it runs."""
    for task, read in zip(tasks, step.tasks, strict=True):
        for field, value in (*task.fields.items(), ("input", task.input)):
            names = {mention[1] for mention in value.mentions if mention[0] == KEYCHAIN and len(mention) > 1}
            for name in sorted(names - set(keychain)):
                where = f"step {step.name!r}, task {task.label!r}, field {field!r}"
                _warn_unknown(where, name, list(keychain), (*read.place, field), findings=findings, step=step.name)


def _warn_unknown(
    where: str, name: str, known: list[str], place: Path, *, findings: Findings, step: str | None
) -> None:
    hint = findings.suggestion(name, known)
    message = f"{where}: there is no keychain entry {name!r} in this playbook{hint}"
    findings.warn("unknown_keychain_entry", message, place, step=step)


def _literal(source: str, _place: Path, _error: NoetlError) -> Template:
    return literal_template(source)


def _together(needs: Iterable[Needs]) -> Needs:
    return reduce(or_, needs, Needs(names=frozenset(), everything=False))
