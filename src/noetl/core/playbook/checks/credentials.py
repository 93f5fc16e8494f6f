"""Which credentials of the store a playbook names, so that a missing one is told before a task needs it.

Only what is written out counts: a name that a template makes, or one that is an entry of the playbook's own keychain,
is nobody's business here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from noetl.core.errors import Problem
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep, CredentialUse
from noetl.core.playbook.document import Document, Path
from noetl.core.playbook.keychain.reading import CREDENTIAL_KINDS
from noetl.core.playbook.model import Playbook, Step, Task

# A mapping with any of these keys is one credential; any other is a map of aliases (dsl §10.1).
SINGLE_AUTH_KEYS = frozenset(
    ("source", "key", "credential", "name", "service", "type", "secret_name", "scope", "fields", "inject")
)
AUTH_NAME_KEYS = ("key", "credential", "name", "secret_name")
STORE_SOURCES = ("credential", "secret")
_TEMPLATE_MARKS = ("{{", "{%", "{#")

_Place = tuple[str, Path]
"""A name and where it stands."""


def missing_credentials(
    playbook: CompiledPlaybook, known: Collection[str], *, file: str | None = None
) -> list[Problem]:
    """A warning for every place that names a credential which is not among the known ones."""
    problems = []
    for use in playbook.credentials:
        if use.name not in known:
            where = f"step {use.step!r}, " if use.step is not None else ""
            message = f"{where}{use.field}: there is no credential {use.name!r}: set it with `noetl credential set`"
            problems.append(
                Problem("missing_credential", message, file, use.line, use.column, use.step, use.field.split(".")[0])
            )
    return problems


def credential_uses(playbook: Playbook, steps: Iterable[CompiledStep], document: Document) -> tuple[CredentialUse, ...]:
    """Every place that names a credential, in the order of the document."""
    entries = frozenset(entry.name for entry in playbook.keychain)
    uses = []
    for entry in playbook.keychain:
        if entry.kind in CREDENTIAL_KINDS:
            key = next(key for key in ("credential", "ref") if entry.config.get(key) not in (None, ""))
            uses += [_use(one, None, document) for one in _named(entry.config[key], (*entry.place, key))]
    for step, compiled in zip(playbook.steps, steps, strict=True):
        for found in (*_of_step(step), *_of_tokens(step, compiled)):
            uses.append(_use(found, step.name, document))
    return tuple(use for use in uses if use.name not in entries or use.step is None)


def _of_step(step: Step) -> Iterator[_Place]:
    cursor = step.loop.cursor if step.loop is not None else None
    if cursor is not None:
        yield from _of_auth(cursor.auth, (*cursor.place, "auth"))
    for task in step.tasks:
        yield from _of_task(task)


def _of_task(task: Task) -> Iterator[_Place]:
    for key in ("auth", "credential"):
        yield from _of_auth(task.config.get(key), (*task.place, key))
    for side in ("source", "target"):  # of a transfer
        part = task.config.get(side)
        if isinstance(part, dict):
            yield from _of_auth(part.get("auth"), (*task.place, side, "auth"))


def _of_tokens(step: Step, compiled: CompiledStep) -> Iterator[_Place]:
    for task, read in zip(compiled.tasks, step.tasks, strict=True):
        for field, value in (*task.fields.items(), ("input", task.input)):
            for name in sorted(name for name in value.tokens if name is not None):
                yield name, (*read.place, field)


def _of_auth(auth: object, place: Path) -> Iterator[_Place]:
    if isinstance(auth, Mapping) and not SINGLE_AUTH_KEYS.intersection(auth):
        for alias, form in auth.items():
            yield from _of_form(form, (*place, alias))
    else:
        yield from _of_form(auth, place)


def _of_form(form: object, place: Path) -> Iterator[_Place]:
    if not isinstance(form, Mapping):
        yield from _named(form, place)
    elif (form.get("source") or "credential") in STORE_SOURCES:
        for key in AUTH_NAME_KEYS:
            if form.get(key) is not None:
                yield from _named(form[key], (*place, key))
                return


def _named(name: object, place: Path) -> Iterator[_Place]:
    if isinstance(name, str) and name.strip() and not any(mark in name for mark in _TEMPLATE_MARKS):
        yield name.strip(), place


def _use(found: _Place, step: str | None, document: Document) -> CredentialUse:
    name, place = found
    field = ".".join(str(part) for part in place if isinstance(part, str) and part not in ("workflow", "tool"))
    near = place
    while near and near not in document.marks:
        near = near[:-1]
    line, column = document.marks.get(near, (None, None))
    return CredentialUse(name=name, field=field, step=step, line=line, column=column)
