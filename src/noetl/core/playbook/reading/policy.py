"""`spec.policy` of a task → its rules (dsl §5.2)."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Action, Rule

RULE_KEYS = frozenset(("when", "then", "else", "expr", "name", "desc"))
THEN_KEYS = frozenset(("do", "attempts", "backoff", "delay", "to", "set", "set_ctx", "set_iter", "set_vars"))
BACKOFFS = ("none", "fixed", "constant", "linear", "exponential")


def read_policy(
    where: str, policy: object, path: Path, findings: Findings, step: str
) -> tuple[tuple[Rule, ...], bool | None]:
    if policy is None:
        return (), None
    if not isinstance(policy, dict):
        findings.error("policy_shape", f"{where}: spec.policy must be a mapping", path, step=step)
        return (), None
    entries = policy.get("rules", [])
    if not isinstance(entries, list):
        findings.error("policy_shape", f"{where}: spec.policy.rules must be a list", (*path, "rules"), step=step)
        entries = []
    rules = []
    for number, entry in enumerate(entries):
        rule = _read_rule(where, entry, (*path, "rules", number), findings, step)
        if rule is not None:
            rules.append(rule)
    unmatched = policy.get("on_unmatched")
    if unmatched not in (None, "continue", "fail"):
        message = f"{where}: unknown on_unmatched {unmatched!r}"
        findings.error("on_unmatched", message, (*path, "on_unmatched"), step=step)
    return tuple(rules), None if unmatched is None else unmatched == "fail"


def _read_rule(where: str, entry: object, path: Path, findings: Findings, step: str) -> Rule | None:
    if not isinstance(entry, dict) or not ({"when", "else", "then"} & set(entry)):
        findings.error("rule_shape", f"{where}: a rule has `when` and `then`, or `else`", path, step=step)
        return None
    findings.warn_unknown(f"{where}, rule", entry, RULE_KEYS, path, step=step)
    if "expr" in entry:
        findings.error("rule_expr", f"{where}: rule key 'expr' is retired, use when", (*path, "expr"), step=step)
    when, then = entry.get("when"), entry.get("then")
    if "else" in entry:
        when = None
        branch = entry["else"]
        if isinstance(branch, dict) and "then" in branch:
            then = branch["then"]
        else:
            findings.warn("else_shape", f"{where}: write else as `else: {{then: …}}`", path, step=step)
            then = branch if isinstance(branch, dict) else then
    elif when is None:
        findings.error("rule_shape", f"{where}: a rule without `when` is written as `else`", path, step=step)
    if when is not None and not isinstance(when, str | bool):
        findings.error("rule_when", f"{where}: when must be an expression or a boolean", (*path, "when"), step=step)
        when = None
    if not isinstance(then, dict):
        findings.error("rule_shape", f"{where}: `then` must be a mapping", (*path, "then"), step=step)
        return None
    return _read_then(where, when, then, place=path, findings=findings, step=step)


def _read_then(
    where: str, when: object, then: Mapping[str, object], *, place: Path, findings: Findings, step: str
) -> Rule | None:
    path = (*place, "then")
    findings.warn_unknown(f"{where}, then", then, THEN_KEYS, path, step=step)
    if "set_vars" in then:
        message = f"{where}: then.set_vars is retired, use set"
        findings.error("retired_task_key", message, (*path, "set_vars"), step=step)
    name = then.get("do")
    if name is None:
        findings.warn("rule_do", f"{where}: then.do is missing, continue is meant", path, step=step)
        name = "continue"
    if not isinstance(name, str) or name not in set(Action):
        hint = findings.suggestion(str(name), [str(action) for action in Action])
        findings.error("rule_do", f"{where}: unknown then.do {name!r}{hint}", (*path, "do"), step=step)
        return None
    action = Action(name)
    to = then.get("to")
    if action is Action.JUMP and not isinstance(to, str):
        findings.error("jump_to", f"{where}: jump needs `to`, a task label", path, step=step)
        return None
    backoff = then.get("backoff")
    if backoff is not None and backoff not in BACKOFFS:
        findings.error("backoff", f"{where}: unknown backoff {backoff!r}", (*path, "backoff"), step=step)
        backoff = None
    values: dict[str, object] = {}
    for key, prefix in (("set", ""), ("set_ctx", "ctx."), ("set_iter", "iter.")):
        block = then.get(key)
        if block is None:
            continue
        if not isinstance(block, dict):
            findings.error("set_shape", f"{where}: {key} must be a mapping", (*path, key), step=step)
            continue
        if prefix:
            findings.warn("deprecated_set", f"{where}: use set instead of {key}", (*path, key), step=step)
        values.update({prefix + name: value for name, value in block.items()})
    attempts = then.get("attempts", 3)
    return Rule(
        when=when,
        do=action,
        attempts=attempts,
        backoff=str(backoff) if backoff else None,
        delay=then.get("delay"),
        to=to if action is Action.JUMP and isinstance(to, str) else None,
        set=values,
        place=place,
    )
