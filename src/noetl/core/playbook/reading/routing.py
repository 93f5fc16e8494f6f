"""`next` in its shapes → arcs and a mode."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import ARCS_PER_STEP_MAX
from noetl.core.playbook.document import Spot
from noetl.core.playbook.model import Arc, Mode, Next

ARC_KEYS = frozenset(("step", "when", "set", "spec", "args", "cond"))
MODES = {"exclusive": Mode.EXCLUSIVE, "inclusive": Mode.INCLUSIVE, "all": Mode.INCLUSIVE}
ON_NO_MATCH = ("complete", "quiet")
RETIRED_ARC_KEYS = {"expr": "when", "set_vars": "set"}


def read_next(entry: Mapping[str, object], spot: Spot) -> Next | None:
    """None when the step has no `next` key.  `next:` left empty is a `next` without arcs."""
    if "next" not in entry:
        return None
    value, inside = entry["next"], spot.at("next")
    declared = _declared_mode(entry, spot)
    if value is None:
        return Next(mode=declared or Mode.EXCLUSIVE, arcs=())
    if isinstance(value, str):
        return Next(mode=declared or Mode.EXCLUSIVE, arcs=(Arc(step=value, place=inside.place),))
    if isinstance(value, list):
        bare = bool(value) and all(isinstance(item, str) for item in value)
        return Next(mode=declared or (Mode.INCLUSIVE if bare else Mode.EXCLUSIVE), arcs=_read_arcs(value, inside))
    if not isinstance(value, dict):
        inside.error("next_shape", "next must be a step name, a list or a mapping")
        return Next(mode=Mode.EXCLUSIVE, arcs=())
    if "step" in value:
        inside.warn("next_shape", "write next.arcs as a list")
        return Next(mode=declared or Mode.EXCLUSIVE, arcs=_read_arcs([value], inside))
    mode = _read_mode(value.get("spec"), inside.at("spec"), declared)
    entries = value.get("arcs")
    if not isinstance(entries, list):
        inside.error("next_shape", "next.arcs must be a list", "arcs")
        entries = []
    return Next(mode=mode, arcs=_read_arcs(entries, inside.at("arcs")))


def _declared_mode(entry: Mapping[str, object], spot: Spot) -> Mode | None:
    spec = entry.get("spec")
    name = spec.get("next_mode") if isinstance(spec, dict) else None
    if name is None:
        return None
    mode = MODES.get(str(name))
    if mode is None:
        spot.error("next_mode", f"unknown spec.next_mode {name!r}", "spec", "next_mode")
    return mode


def _read_mode(spec: object, spot: Spot, declared: Mode | None) -> Mode:
    if spec is None:
        return declared or Mode.EXCLUSIVE
    if not isinstance(spec, dict):
        spot.error("next_shape", "next.spec must be a mapping")
        return Mode.EXCLUSIVE
    unmatched = spec.get("on_no_match")
    if unmatched is not None and unmatched not in ON_NO_MATCH:
        spot.error("on_no_match", f"unknown next.spec.on_no_match {unmatched!r}", "on_no_match")
    name = spec.get("mode")
    if name is None:
        return declared or Mode.EXCLUSIVE
    mode = MODES.get(str(name))
    if mode is None:
        spot.error("next_mode", f"unknown next.spec.mode {name!r}", "mode")
        return Mode.EXCLUSIVE
    if declared is not None and declared is not mode:
        spot.error("next_mode", "spec.next_mode and next.spec.mode disagree", "mode")
    return mode


def _read_arcs(entries: list[object], spot: Spot) -> tuple[Arc, ...]:
    if len(entries) > ARCS_PER_STEP_MAX:
        spot.error("too_many_arcs", f"next has {len(entries):,} arcs, the limit is {ARCS_PER_STEP_MAX}")
        return ()
    arcs = (_read_arc(entry, spot.at(number)) for number, entry in enumerate(entries))
    return tuple(arc for arc in arcs if arc is not None)


def _read_arc(entry: object, spot: Spot) -> Arc | None:
    if isinstance(entry, str):
        return Arc(step=entry, place=spot.place)
    target = entry.get("step") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(target, str) or not target:
        spot.error("arc_shape", "an arc is a mapping with `step`")
        return None
    for key, better in RETIRED_ARC_KEYS.items():
        if key in entry:
            spot.error("retired_arc_key", f"arc key {key!r} is retired, use {better}", key)
    spot.part(f"arc to {target!r}").warn_unknown(entry, ARC_KEYS | RETIRED_ARC_KEYS.keys())
    when = entry.get("when", entry.get("cond"))
    if "cond" in entry:
        spot.warn("arc_cond", "use when instead of cond", "cond")
    if when is not None and not isinstance(when, str | bool):
        spot.error("arc_when", "when must be an expression or a boolean", "when")
        when = None
    if "args" in entry:
        spot.warn("deprecated_args", "use set instead of arc args", "args")
    return Arc(
        step=target,
        when=when,
        set=_mapping_of("set", entry.get("set"), spot),
        args=_mapping_of("args", entry.get("args"), spot),
        place=spot.place,
    )


def _mapping_of(key: str, value: object, spot: Spot) -> Mapping[str, object]:
    if value and not isinstance(value, dict):
        spot.error("set_shape", f"arc {key} must be a mapping", key)
    return dict(value) if isinstance(value, dict) else {}
