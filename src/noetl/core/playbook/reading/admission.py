"""`spec.policy.admit` of a step and its deprecated `when` → whether it may run when it is its turn (dsl §2.4)."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import RULES_PER_TASK_MAX
from noetl.core.playbook.document import Findings, Path, Spot
from noetl.core.playbook.model import AdmitRule
from noetl.core.playbook.reading.policy import read_branch

ADMIT_KEYS = frozenset(("rules", "mode", "desc"))
THEN_KEYS = frozenset(("allow",))


def read_admit(step: str, spec: object, path: Path, findings: Findings) -> tuple[AdmitRule, ...]:
    policy = spec.get("policy") if isinstance(spec, dict) else None
    if not isinstance(policy, dict) or "admit" not in policy:
        return ()
    admit = policy["admit"]
    spot = Spot(findings, f"step {step!r}, spec.policy.admit", (*path, "spec", "policy", "admit"), step)
    if not isinstance(admit, dict):
        spot.error("admit_shape", "must be a mapping with `rules`")
        return ()
    spot.warn_unknown(admit, ADMIT_KEYS)
    entries = admit.get("rules")
    if not isinstance(entries, list):
        spot.error("admit_shape", "rules must be a list", "rules")
        return ()
    if len(entries) > RULES_PER_TASK_MAX:
        spot.error("too_many_rules", f"has {len(entries):,} rules, the limit is {RULES_PER_TASK_MAX}", "rules")
        return ()
    rules = (_read_rule(entry, spot.at("rules", number)) for number, entry in enumerate(entries))
    return tuple(rule for rule in rules if rule is not None)


def _read_rule(entry: object, spot: Spot) -> AdmitRule | None:
    branch = read_branch(entry, spot)
    if branch is None:
        return None
    when, then, at_then = branch
    at_then.part("then").warn_unknown(then, THEN_KEYS)
    allow = then.get("allow")
    if not isinstance(allow, bool):
        at_then.error("admit_allow", f"then.allow must be true or false, not {allow!r}", "allow")
        return None
    return AdmitRule(when=when, allow=allow, place=spot.place)


def read_guard(entry: Mapping[str, object], spot: Spot) -> str | bool | None:
    """The deprecated `when` of a step; one that is left empty guards nothing."""
    if "when" not in entry:
        return None
    when = entry["when"]
    spot.warn("deprecated_when", "`when` of a step is deprecated, use spec.policy.admit or `when` of arcs", "when")
    if when is None or isinstance(when, str | bool):
        return when
    spot.error("step_when", "when must be an expression or a boolean", "when")
    return None
