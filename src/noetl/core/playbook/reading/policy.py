"""`spec.policy` of a task → its rules (dsl §5.2)."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import RULES_PER_TASK_MAX
from noetl.core.playbook.document import Path, Spot
from noetl.core.playbook.model import Action, Rule

RULE_KEYS = frozenset(("when", "then", "else", "expr", "name", "desc"))
THEN_KEYS = frozenset(("do", "attempts", "backoff", "delay", "to", "set", "set_ctx", "set_iter", "set_vars"))
BACKOFFS = ("none", "fixed", "constant", "linear", "exponential")


def read_policy(policy: object, spot: Spot) -> tuple[tuple[Rule, ...], bool | None]:
    """The rules, and whether an outcome that none of them matches is a failure (None: as usual)."""
    if policy is None:
        return (), None
    if not isinstance(policy, dict):
        spot.error("policy_shape", "spec.policy must be a mapping")
        return (), None
    entries = policy.get("rules", [])
    if not isinstance(entries, list):
        spot.error("policy_shape", "spec.policy.rules must be a list", "rules")
        entries = []
    if len(entries) > RULES_PER_TASK_MAX:
        message = f"spec.policy has {len(entries):,} rules, the limit is {RULES_PER_TASK_MAX}"
        spot.error("too_many_rules", message, "rules")
        entries = []
    rules = [_read_rule(entry, spot.at("rules", number)) for number, entry in enumerate(entries)]
    unmatched = policy.get("on_unmatched")
    if unmatched not in (None, "continue", "fail"):
        spot.error("on_unmatched", f"unknown on_unmatched {unmatched!r}", "on_unmatched")
    return tuple(rule for rule in rules if rule is not None), None if unmatched is None else unmatched == "fail"


def _read_rule(entry: object, spot: Spot) -> Rule | None:
    branch = read_branch(entry, spot)
    return None if branch is None else _read_then(*branch, place=spot.place)


def read_branch(entry: object, spot: Spot) -> tuple[object, Mapping[str, object], Spot] | None:
    """A rule's condition, its `then` and where that stands, in every shape of `else` (dsl §5.2, §11).  None as
    condition is the catch-all."""
    if not isinstance(entry, dict) or not ({"when", "else", "then"} & set(entry)):
        spot.error("rule_shape", "a rule has `when` and `then`, or `else`")
        return None
    spot.part("rule").warn_unknown(entry, RULE_KEYS)
    if "expr" in entry:
        spot.error("rule_expr", "rule key 'expr' is retired, use when", "expr")
    when, then, at_then = entry.get("when"), entry.get("then"), spot.at("then")
    if "else" in entry:
        when = None
        branch = entry["else"]
        if isinstance(branch, dict) and "then" in branch:
            then, at_then = branch["then"], spot.at("else", "then")
        else:
            spot.warn("else_shape", "write else as `else: {then: …}`")
            then, at_then = (branch, spot.at("else")) if isinstance(branch, dict) else (then, at_then)
    elif when is None:
        spot.error("rule_shape", "a rule without `when` is written as `else`")
    if when is not None and not isinstance(when, str | bool):
        spot.error("rule_when", "when must be an expression or a boolean", "when")
        when = None
    if not isinstance(then, dict):
        at_then.error("rule_shape", "`then` must be a mapping")
        return None
    return when, then, at_then


def _read_then(when: object, then: Mapping[str, object], spot: Spot, *, place: Path) -> Rule | None:
    spot.part("then").warn_unknown(then, THEN_KEYS)
    if "set_vars" in then:
        spot.error("retired_task_key", "then.set_vars is retired, use set", "set_vars")
    name = then.get("do")
    if name is None:
        spot.warn("rule_do", "then.do is missing, continue is meant")
        name = "continue"
    if not isinstance(name, str) or name not in set(Action):
        spot.error("rule_do", f"unknown then.do {name!r}{spot.near(str(name), map(str, Action))}", "do")
        return None
    action, to = Action(name), then.get("to")
    if action is Action.JUMP and not isinstance(to, str):
        spot.error("jump_to", "jump needs `to`, a task label")
        return None
    return Rule(
        when=when,
        do=action,
        attempts=then.get("attempts", 3),
        backoff=read_backoff(then.get("backoff"), spot),
        delay=then.get("delay"),
        to=to if action is Action.JUMP and isinstance(to, str) else None,
        set=_writes(then, spot),
        place=place,
        then_place=spot.place,
    )


def read_backoff(value: object, spot: Spot) -> str | None:
    if value is None or value in BACKOFFS:
        return None if value is None else str(value)
    spot.error("backoff", f"unknown backoff {value!r}{spot.near(str(value), BACKOFFS)}", "backoff")
    return None


def _writes(then: Mapping[str, object], spot: Spot) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, prefix in (("set", ""), ("set_ctx", "ctx."), ("set_iter", "iter.")):
        block = then.get(key)
        if block is None:
            continue
        if not isinstance(block, dict):
            spot.error("set_shape", f"{key} must be a mapping", key)
            continue
        if prefix:
            spot.warn("deprecated_set", f"use set instead of {key}", key)
        values.update({prefix + name: value for name, value in block.items()})
    return values
