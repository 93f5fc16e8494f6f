"""What both sides of the compiler need: templates that may be wrong, and the targets of `set`."""

from __future__ import annotations

from collections.abc import Iterator

from noetl.core.errors import NoetlError, TemplateFailed, TemplateInvalid
from noetl.core.expression import (
    CompiledValue,
    Template,
    broken_template,
    compile_condition,
    compile_value,
    literal_template,
)
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.keychain.secrecy import refuse_secrets
from noetl.core.playbook.model import Playbook, Step, Task


class Templates:
    """Compiles the templates of one step, or of one task of it.

    Text that is no template is a warning: what evaluates it fails, or, where text may be meant as it stands, leaves
    it alone.  What is never allowed is an error."""

    def __init__(self, findings: Findings, step: Step, task: Task | None = None) -> None:
        self._findings = findings
        self._step = step.name
        self._where = f"step {step.name!r}" + (f", task {task.label!r}" if task is not None else "")

    def condition(self, value: str | bool, place: Path) -> Template:
        try:
            condition = compile_condition(value)
        except (TemplateInvalid, TemplateFailed) as error:
            self._note(place, error, is_program=False)
            return broken_template(str(value), str(error))
        self.refuse_secrets(condition, place)
        return condition

    def value(self, value: object, place: Path) -> CompiledValue:
        """A value that is evaluated for its own sake: wrong text makes it fail, and what it gives is recorded."""

        def broken(source: str, inside: Path, error: NoetlError) -> Template:
            self._note((*place, *inside), error, is_program=False)
            return broken_template(source, str(error))

        compiled = compile_value(value, instead=broken)
        self.refuse_secrets(compiled, place)
        return compiled

    def text(self, value: object, place: Path, *, is_program: bool = False) -> CompiledValue:
        """A value that may be meant as it stands, such as a command of a shell or a program."""

        def literal(source: str, inside: Path, error: NoetlError) -> Template:
            self._note((*place, *inside), error, is_program=is_program)
            return literal_template(source)

        return compile_value(value, instead=literal)

    def refuse_secrets(self, value: CompiledValue | Template, place: Path, **reason: str) -> None:
        where = f"{self._where}, field {field_name(place)!r}"
        refuse_secrets(value, where, place, findings=self._findings, step=self._step, **reason)

    def _note(self, place: Path, error: NoetlError, *, is_program: bool) -> None:
        note = self._findings.warn if is_program or isinstance(error, TemplateInvalid) else self._findings.error
        note(error.code, f"{self._where}, field {field_name(place)!r}: {error}", place, step=self._step)


def field_name(place: Path) -> str:
    """The end of a place, as far as a reader needs it: `when`, or `set.rows` for an entry of a block."""
    names = [str(part) for part in place]
    for block in ("set", "input", "in"):
        if block in names[2:]:
            return ".".join(names[names.index(block, 2) :])
    return names[-1]


def target_of(name: str, *, bare: str) -> tuple[str, tuple[str, ...]]:
    """The scope and the path that a key of a `set` block writes."""
    head, _, rest = name.partition(".")
    if head in ("ctx", "iter", "step") and rest:
        return head, tuple(rest.split("."))
    return bare, tuple(name.split("."))


def texts_in(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every string of a value with its place."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from texts_in(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from texts_in(child, (*path, number))


def set_keys(playbook: Playbook) -> Iterator[str]:
    """The keys of every `set` block of a playbook."""
    for step in playbook.steps:
        yield from step.set
        for arc in step.next.arcs if step.next else ():
            yield from arc.set
            yield from arc.args
        for task in step.tasks:
            yield from task.set
            for rule in task.rules:
                yield from rule.set
