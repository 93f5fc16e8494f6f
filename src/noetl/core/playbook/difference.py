"""What changed between two editions of a playbook: line by line, and in the words of the language.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import unified_diff
from typing import TypeVar

from noetl.core.errors import PlaybookInvalid
from noetl.core.limits import DIFF_LINES_MAX
from noetl.core.playbook.lenient import read_parts
from noetl.core.playbook.model import Arc, Next, Step, Task

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_VALUE_CHARS_MAX = 60
_OWN_ROOTS = ("workflow", "workload")
_STEP_WORDS = {"timeout_seconds": "timeout", "is_pipeline": "tool shape"}
K = TypeVar("K", bound=Hashable)
_Detail = Callable[[object, object], str]
_TASK_WORDS = {"rules": "policy", "fails_unmatched": "policy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """One side of a comparison; `scripts` are the texts of its scripts by path."""

    label: str
    text: str
    scripts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`what` is step, tool, arc, workload, script or document; `name` says which one, `detail` what about it."""

    change: str
    what: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        sign = {ADDED: "+", REMOVED: "-", CHANGED: "~"}[self.change]
        return f"{sign} {self.what} {self.name}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`changes` are what the language sees, `text` is the unified difference; both are empty for the same content."""

    changes: tuple[Change, ...]
    text: str


def difference(old: Edition, new: Edition) -> Difference:
    """An edition that cannot be read any more still has its lines."""
    changes: list[Change] = []
    try:
        before, after = read_parts(old.text, file=old.label), read_parts(new.text, file=new.label)
    except PlaybookInvalid:
        pass
    else:
        changes += _root_changes(before.root, after.root)
        changes += _workload_changes(before.workload, after.workload)
        changes += _step_changes({step.name: step for step in before.steps}, {step.name: step for step in after.steps})
    changes += _keyed("script", old.scripts, new.scripts, detail=lambda *_: "its text")
    lines = [*_lines(old.label, new.label, old.text, new.text)]
    for uri in sorted({*old.scripts, *new.scripts}):
        texts = old.scripts.get(uri, ""), new.scripts.get(uri, "")
        lines += _lines(f"{old.label}, script {uri}", f"{new.label}, script {uri}", *texts)
    return Difference(changes=tuple(changes), text="\n".join(lines))


# --- lines -----------------------------------------------------------------------------------------------


def _lines(old_label: str, new_label: str, old: str, new: str) -> Iterator[str]:
    if old == new:
        return
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > DIFF_LINES_MAX:
        yield f"--- {old_label}"
        yield f"+++ {new_label}"
        yield f"@@ {len(before):,} and {len(after):,} lines: more than {DIFF_LINES_MAX:,} are not compared @@"
    else:
        yield from unified_diff(before, after, old_label, new_label, lineterm="")
        if before == after:
            yield f"@@ {old_label} and {new_label} differ in their line ends only @@"


# --- the parts of a document -----------------------------------------------------------------------------


def _root_changes(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Change]:
    for key in _in_order(old, new):
        if key in _OWN_ROOTS:
            continue
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _keyed("document", old[key], new[key], prefix=f"{key}.", detail=_from_to)  # type: ignore[arg-type]
        elif old.get(key) != new.get(key):
            yield Change(change=_how(key in old, key in new), what="document", name=key)


def _workload_changes(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Change]:
    yield from _keyed("workload", old, new, detail=_from_to)


def _step_changes(old: Mapping[str, Step], new: Mapping[str, Step]) -> Iterator[Change]:
    for name in _in_order(old, new):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            one = before or after
            assert one is not None
            kinds = ", ".join(task.kind for task in one.tasks)
            yield Change(change=_how(before is not None, after is not None), what="step", name=name, detail=kinds)
        elif before != after:
            yield from _within_step(name, before, after)
    if [name for name in old if name in new] != [name for name in new if name in old]:
        yield Change(change=CHANGED, what="document", name="workflow", detail="the order of its steps")


def _within_step(name: str, old: Step, new: Step) -> Iterator[Change]:
    parts = _differing(old, new, _STEP_WORDS, skip=("tasks", "next", "place", "name"))
    if parts:
        yield Change(change=CHANGED, what="step", name=name, detail=", ".join(parts))
    yield from _task_changes(name, old, new)
    yield from _arc_changes(name, old.next, new.next)


def _task_changes(step: str, old: Step, new: Step) -> Iterator[Change]:
    before, after = {task.label: task for task in old.tasks}, {task.label: task for task in new.tasks}
    for label in _in_order(before, after):
        one, other = before.get(label), after.get(label)
        name = f"{step}/{label}" if old.is_pipeline or new.is_pipeline else step
        if one is None or other is None:
            kind = (one or other).kind  # type: ignore[union-attr]
            yield Change(change=_how(one is not None, other is not None), what="tool", name=name, detail=kind)
        elif one != other:
            yield Change(change=CHANGED, what="tool", name=name, detail=", ".join(_within_task(one, other)))
    if [label for label in before if label in after] != [label for label in after if label in before]:
        yield Change(change=CHANGED, what="step", name=step, detail="the order of its tasks")


def _within_task(old: Task, new: Task) -> Iterator[str]:
    if old.kind != new.kind:
        yield f"kind {old.kind} → {new.kind}"
    yield from (key for key in _in_order(old.config, new.config) if old.config.get(key) != new.config.get(key))
    yield from (f"input.{key}" for key in _in_order(old.input, new.input) if old.input.get(key) != new.input.get(key))
    yield from _differing(old, new, _TASK_WORDS, skip=("kind", "config", "input", "label", "place"))


def _arc_changes(step: str, old: Next | None, new: Next | None) -> Iterator[Change]:
    if old is not None and new is not None and old.mode != new.mode:
        yield Change(change=CHANGED, what="step", name=step, detail=f"next mode {old.mode} → {new.mode}")
    before, after = _arcs(old), _arcs(new)
    for key in _in_order(before, after):
        one, other = before.get(key), after.get(key)
        name = f"{step} → {key[0]}"
        if one is None or other is None:
            when = (one or other).when  # type: ignore[union-attr]
            detail = "" if when is None else f"when {_short(when)}"
            yield Change(change=_how(one is not None, other is not None), what="arc", name=name, detail=detail)
        elif one != other:
            parts = _differing(one, other, {}, skip=("step", "place", "when"))
            if one.when != other.when:
                parts.insert(0, f"when {_short(one.when)} → {_short(other.when)}")
            yield Change(change=CHANGED, what="arc", name=name, detail=", ".join(parts))
    if [key for key in before if key in after] != [key for key in after if key in before]:
        yield Change(change=CHANGED, what="step", name=step, detail="the order of its arcs")


def _arcs(found: Next | None) -> dict[tuple[str, int], Arc]:
    """Arcs by target; several to one target are told apart by their number."""
    arcs: dict[tuple[str, int], Arc] = {}
    for arc in found.arcs if found is not None else ():
        number = sum(target == arc.step for target, _ in arcs)
        arcs[arc.step, number] = arc
    return arcs


# --- comparing -------------------------------------------------------------------------------------------


def _keyed(
    what: str, old: Mapping[str, object], new: Mapping[str, object], *, detail: _Detail, prefix: str = ""
) -> Iterator[Change]:
    for key in _in_order(old, new):
        if key not in old or key not in new:
            yield Change(change=_how(key in old, key in new), what=what, name=f"{prefix}{key}")
        elif old[key] != new[key]:
            yield Change(change=CHANGED, what=what, name=f"{prefix}{key}", detail=detail(old[key], new[key]))


def _in_order(old: Iterable[K], new: Iterable[K]) -> list[K]:
    """All keys, those of the new side where they stand, those that are gone at the end."""
    return list(dict.fromkeys((*new, *old)))


def _how(was: bool, is_now: bool) -> str:
    return CHANGED if was and is_now else REMOVED if was else ADDED


def _from_to(old: object, new: object) -> str:
    return f"{_short(old)} → {_short(new)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[:_VALUE_CHARS_MAX]}…"


def _differing(old: object, new: object, words: Mapping[str, str], *, skip: Sequence[str]) -> list[str]:
    """The members in which two parts of a model differ, in the words of the document."""
    names = [one.name for one in fields(old)]  # type: ignore[arg-type]
    found = [name for name in names if name not in skip and getattr(old, name) != getattr(new, name)]
    return list(dict.fromkeys(words.get(name, name) for name in found))
