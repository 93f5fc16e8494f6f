"""`executor` → where an execution begins and ends, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import TIMEOUT_SECONDS_MAX
from noetl.core.playbook.document import Findings, Path

PROFILES = ("auto", "local", "distributed")


def read_executor(
    executor: object, findings: Findings, steps: list[str], kinds: frozenset[str]
) -> tuple[Mapping[str, object], float | None]:
    if executor is None:
        return {}, None
    spec = executor.get("spec") if isinstance(executor, dict) else None
    if not isinstance(executor, dict) or not isinstance(spec if spec is not None else {}, dict):
        findings.error("executor_shape", "executor and executor.spec must be mappings", ("executor",))
        return {}, None
    spec = spec or {}
    profile = executor.get("profile", "auto")
    if profile not in PROFILES:
        hint = findings.suggestion(str(profile), PROFILES)
        message = f"executor.profile {profile!r} is not known and taken as auto{hint}"
        findings.warn("unknown_profile", message, ("executor", "profile"))
    for key in ("entry_step", "final_step"):
        target = spec.get(key)
        if target is not None and target not in steps:
            hint = findings.suggestion(str(target), steps)
            findings.error(
                "unknown_step",
                f"executor.spec.{key} names no step: {target!r}{hint}",
                ("executor", "spec", key),
            )
    for key in ("no_next_is_error", "strict_templates"):
        if not isinstance(spec.get(key, False), bool):
            message = f"executor.spec.{key} must be true or false"
            findings.error("executor_shape", message, ("executor", "spec", key))
    _check_requires(executor.get("requires"), findings, kinds)
    return spec, _default_timeout(spec, findings)


def _default_timeout(spec: Mapping[str, object], findings: Findings) -> float | None:
    policy = spec.get("policy")
    defaults = policy.get("defaults") if isinstance(policy, dict) else None
    timeout = defaults.get("timeout_s") if isinstance(defaults, dict) else None
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout <= TIMEOUT_SECONDS_MAX):
        message = "executor.spec.policy.defaults.timeout_s must be a number above 0"
        if is_number and timeout > 0:
            message = f"{message} and at most {TIMEOUT_SECONDS_MAX:,.0f}"
        findings.error("timeout", message, ("executor", "spec", "policy", "defaults", "timeout_s"))
        return None
    return float(timeout) if timeout is not None else None


def _check_requires(requires: object, findings: Findings, kinds: frozenset[str]) -> None:
    """A tool that the playbook cannot do without is missed at once, not when its step runs."""
    place: Path = ("executor", "requires")
    if requires is None:
        return
    tools = requires.get("tools", []) if isinstance(requires, dict) else None
    if not isinstance(requires, dict) or not isinstance(tools, list):
        findings.error("executor_shape", "executor.requires.tools must be a list", place)
        return
    for number, kind in enumerate(tools):
        if str(kind).lower() not in kinds:
            message = f"executor.requires.tools: tool kind {kind!r} is not available in this installation"
            findings.error("tool_missing", message, (*place, "tools", number))
    if requires.get("features"):
        message = "executor.requires.features: no features are known to this release"
        findings.warn("unknown_feature", message, (*place, "features"))
