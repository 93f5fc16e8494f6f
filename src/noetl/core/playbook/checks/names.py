"""Names that nothing in a playbook can give: a slip of the pen that would show only when a step runs.

All of it is warnings, because a request may bring names of its own, and because undefined is a value of the language.
What a template asks about first (`x is defined`, `x | default(1)`, `x or y`) is nobody's slip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from noetl.core.expression import CompiledValue, Template, guarded
from noetl.core.limits import DOCUMENT_WARNINGS_MAX
from noetl.core.playbook.checks.order import Order
from noetl.core.playbook.checks.places import Place, places_of, templates_in
from noetl.core.playbook.checks.scopes import Scope, Scopes
from noetl.core.playbook.compiled import CompiledStep, ServerValue
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Playbook
from noetl.core.playbook.needs import RESERVED

Mention = tuple[str, ...]

NAME_CHARS_SHOWN_MAX = 60

# Names that a workload template has beside the keys before it and those of the request.
_OF_A_REQUEST = frozenset(("payload", "input", "execution_id", "job", "env", "workload", "ctx"))


def check_names(
    playbook: Playbook, steps: Sequence[CompiledStep], workload: Mapping[str, CompiledValue], findings: Findings
) -> None:
    checker = _Checker(playbook, steps, findings)
    for place in places_of(playbook, steps, checker.scopes):
        checker.check(place)
    _check_workload(workload, findings)


class _Checker:
    def __init__(self, playbook: Playbook, steps: Sequence[CompiledStep], findings: Findings) -> None:
        self.scopes = Scopes(playbook)
        self._order = Order(playbook, [step.reaches for step in steps])
        self._findings = findings
        self._all = self.scopes.everywhere | self.scopes.steps

    def check(self, place: Place) -> None:
        if len(self._findings.warnings) > DOCUMENT_WARNINGS_MAX:
            return
        if not isinstance(place.value, ServerValue) and not any(self._wrong(place.value, place.scope)):
            return
        for template, path in templates_in(place):
            wrong = list(self._wrong(template, place.scope))
            if wrong:
                asked = guarded(template)
                for mention, code, reason in wrong:
                    if not any(one[: len(mention)] == mention for one in asked):
                        self._warn(code, reason, path, place)

    def _warn(self, code: str, reason: str, path: Path, place: Place) -> None:
        step, task = place.scope.step, place.task
        where = f"step {step.name!r}" + (f", task {task.label!r}" if task is not None else "")
        field = _relative(path, step.place if task is None else task.place)
        self._findings.warn(code, f"{where}, field {field!r}: {reason}", path, step=step.name)

    def _wrong(self, template: Template | CompiledValue, scope: Scope) -> Iterator[tuple[Mention, str, str]]:
        """What a template reads that cannot be there: the path up to what is wrong, the code and the words."""
        for root in sorted(template.roots):
            if root in scope or root in self.scopes.everywhere:
                continue
            if root not in self.scopes.steps:
                yield (root,), "unknown_name", self._unknown(root, scope)
            elif self._never_ran(root, scope):
                yield (root,), "never_ran_before", _never(root)
        for mention in sorted(template.mentions):
            if len(mention) > 1:
                yield from self._wrong_part(mention[0], mention[1], scope)

    def _wrong_part(self, root: str, key: str, scope: Scope) -> Iterator[tuple[Mention, str, str]]:
        if root == "steps":
            if key not in self.scopes.steps:
                hint = self._findings.suggestion(key, self.scopes.steps)
                yield (root, key), "unknown_name", f"there is no step {_short(key)}{hint}"
            elif self._never_ran(key, scope):
                yield (root, key), "never_ran_before", _never(key)
        elif root == "ctx":
            yield from self._wrong_context(key, scope)
        elif root == "workload":
            if key not in self.scopes.workload:
                # The request may bring keys that the playbook does not know, so only what looks like a slip is one.
                hint = self._findings.suggestion(key, self.scopes.workload)
                if hint:
                    yield (root, key), "unknown_name", f"the workload has no {_short(key)}{hint}"
        elif root == "results" and "results" in scope.own:
            if not scope.has_label(key):
                yield (root, key), "unknown_name", f"'results' has no {_short(key)} here"
        elif root in scope.own or root in ("iter", "job", "spec"):
            known = scope.parts.get(root)
            if known is not None and key not in known:
                hint = self._findings.suggestion(key, known)
                yield (root, key), "unknown_name", f"{root!r} has no {_short(key)} here{hint}"

    def _wrong_context(self, key: str, scope: Scope) -> Iterator[tuple[Mention, str, str]]:
        """A key that `ctx` lacks may be one of the workload, or a step."""
        if key in self.scopes.context or key in self.scopes.workload:
            return
        if key not in self.scopes.steps:
            hint = self._findings.suggestion(key, self.scopes.context | self.scopes.workload)
            yield ("ctx", key), "unknown_name", f"nothing writes the key {_short(key)} of ctx{hint}"
        elif self._never_ran(key, scope):
            yield ("ctx", key), "never_ran_before", _never(key)

    def _never_ran(self, name: str, scope: Scope) -> bool:
        if scope.step.name == name and scope.is_behind_it:
            return False
        return self._order.is_never_before(name, scope.step.name)

    def _unknown(self, name: str, scope: Scope) -> str:
        if name in RESERVED:
            return f"{name!r} does not exist at this place"
        hint = self._findings.suggestion(name, chain(self._all, scope.names()))
        return f"nothing is called {_short(name)}{hint}: give it a default in workload if requests bring it"


def _relative(path: Path, base: Path) -> str:
    """A place as seen from its step or task; what a workbook gave stands elsewhere."""
    inside = path[len(base) :] if path[: len(base)] == base else path
    return ".".join(map(str, inside))


def _never(name: str) -> str:
    return f"reads step {_short(name)}, which can never have run before"


def _short(name: str) -> str:
    return repr(name if len(name) <= NAME_CHARS_SHOWN_MAX else name[:NAME_CHARS_SHOWN_MAX] + "…")


def _check_workload(workload: Mapping[str, CompiledValue], findings: Findings) -> None:
    """A default is rendered from those before it and from the request, which may have any name."""
    place = {key: number for number, key in enumerate(workload)}
    for key, value in workload.items():
        for root in sorted(value.roots - _OF_A_REQUEST):
            hint = ""
            if root not in workload:
                hint = findings.suggestion(root, [name for name in workload if place[name] < place[key]])
                reason = f"nothing is called {_short(root)}{hint}"
            else:
                reason = f"reads {_short(root)}, which comes later in the workload"
            if hint or place.get(root, 0) > place[key]:
                findings.warn("unknown_name", f"workload.{key}: {reason}", ("workload", key))
