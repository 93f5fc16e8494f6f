"""`next` in its shapes → arcs and a mode."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import ARCS_PER_STEP_MAX
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Arc, Mode, Next

ARC_KEYS = frozenset(("step", "when", "set", "spec", "args", "cond"))
MODES = {"exclusive": Mode.EXCLUSIVE, "inclusive": Mode.INCLUSIVE, "all": Mode.INCLUSIVE}
ON_NO_MATCH = ("complete", "quiet")


def read_next(step: str, entry: Mapping[str, object], path: Path, findings: Findings) -> Next | None:
    """None when the step has no `next` key.  `next:` left empty is a `next` without arcs."""
    if "next" not in entry:
        return None
    value, place = entry["next"], (*path, "next")
    declared = _declared_mode(step, entry, path, findings)
    if value is None:
        return Next(mode=declared or Mode.EXCLUSIVE, arcs=())
    if isinstance(value, str):
        return Next(mode=declared or Mode.EXCLUSIVE, arcs=(Arc(step=value, place=place),))
    if isinstance(value, list):
        bare = bool(value) and all(isinstance(item, str) for item in value)
        arcs = _read_arcs(step, value, place, findings)
        return Next(mode=declared or (Mode.INCLUSIVE if bare else Mode.EXCLUSIVE), arcs=arcs)
    if not isinstance(value, dict):
        findings.error("next_shape", f"step {step!r}: next must be a step name, a list or a mapping", place, step=step)
        return Next(mode=Mode.EXCLUSIVE, arcs=())
    if "step" in value:
        findings.warn("next_shape", f"step {step!r}: write next.arcs as a list", place, step=step)
        return Next(mode=declared or Mode.EXCLUSIVE, arcs=_read_arcs(step, [value], place, findings))
    mode = _read_mode(step, value.get("spec"), place, findings, declared)
    entries = value.get("arcs")
    if not isinstance(entries, list):
        findings.error("next_shape", f"step {step!r}: next.arcs must be a list", (*place, "arcs"), step=step)
        entries = []
    return Next(mode=mode, arcs=_read_arcs(step, entries, (*place, "arcs"), findings))


def _declared_mode(step: str, entry: Mapping[str, object], path: Path, findings: Findings) -> Mode | None:
    spec = entry.get("spec")
    name = spec.get("next_mode") if isinstance(spec, dict) else None
    if name is None:
        return None
    mode = MODES.get(str(name))
    if mode is None:
        findings.error(
            "next_mode",
            f"step {step!r}: unknown spec.next_mode {name!r}",
            (*path, "spec", "next_mode"),
            step=step,
        )
    return mode


def _read_mode(step: str, spec: object, path: Path, findings: Findings, declared: Mode | None) -> Mode:
    if spec is None:
        return declared or Mode.EXCLUSIVE
    if not isinstance(spec, dict):
        findings.error("next_shape", f"step {step!r}: next.spec must be a mapping", (*path, "spec"), step=step)
        return Mode.EXCLUSIVE
    place = (*path, "spec")
    unmatched = spec.get("on_no_match")
    if unmatched is not None and unmatched not in ON_NO_MATCH:
        findings.error(
            "on_no_match",
            f"step {step!r}: unknown next.spec.on_no_match {unmatched!r}",
            (*place, "on_no_match"),
            step=step,
        )
    name = spec.get("mode")
    if name is None:
        return declared or Mode.EXCLUSIVE
    mode = MODES.get(str(name))
    if mode is None:
        findings.error("next_mode", f"step {step!r}: unknown next.spec.mode {name!r}", (*place, "mode"), step=step)
        return Mode.EXCLUSIVE
    if declared is not None and declared is not mode:
        message = f"step {step!r}: spec.next_mode and next.spec.mode disagree"
        findings.error("next_mode", message, (*place, "mode"), step=step)
    return mode


def _read_arcs(step: str, entries: list[object], path: Path, findings: Findings) -> tuple[Arc, ...]:
    if len(entries) > ARCS_PER_STEP_MAX:
        message = f"step {step!r}: next has {len(entries):,} arcs, the limit is {ARCS_PER_STEP_MAX}"
        findings.error("too_many_arcs", message, path, step=step)
        return ()
    arcs = []
    for number, entry in enumerate(entries):
        arc = _read_arc(step, entry, (*path, number), findings)
        if arc is not None:
            arcs.append(arc)
    return tuple(arcs)


def _read_arc(step: str, entry: object, path: Path, findings: Findings) -> Arc | None:
    if isinstance(entry, str):
        return Arc(step=entry, place=path)
    target = entry.get("step") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(target, str) or not target:
        findings.error("arc_shape", f"step {step!r}: an arc is a mapping with `step`", path, step=step)
        return None
    for key, better in (("expr", "when"), ("set_vars", "set")):
        if key in entry:
            message = f"step {step!r}: arc key {key!r} is retired, use {better}"
            findings.error("retired_arc_key", message, (*path, key), step=step)
    findings.warn_unknown(f"step {step!r}, arc to {target!r}", entry, ARC_KEYS | {"expr", "set_vars"}, path, step=step)
    when = entry.get("when", entry.get("cond"))
    if "cond" in entry:
        findings.warn("arc_cond", f"step {step!r}: use when instead of cond", (*path, "cond"), step=step)
    if when is not None and not isinstance(when, str | bool):
        findings.error(
            "arc_when", f"step {step!r}: when must be an expression or a boolean", (*path, "when"), step=step
        )
        when = None
    if "args" in entry:
        findings.warn("deprecated_args", f"step {step!r}: use set instead of arc args", (*path, "args"), step=step)
    return Arc(
        step=target,
        when=when,
        set=_mapping_of(step, "set", entry.get("set"), path, findings),
        args=_mapping_of(step, "args", entry.get("args"), path, findings),
        place=path,
    )


def _mapping_of(step: str, key: str, value: object, path: Path, findings: Findings) -> Mapping[str, object]:
    if isinstance(value or {}, dict):
        return dict(value) if isinstance(value, dict) else {}
    findings.error("set_shape", f"step {step!r}: arc {key} must be a mapping", (*path, key), step=step)
    return {}
