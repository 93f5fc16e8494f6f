"""What becomes of all outputs of a job by its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from noetl.adapters.spark.job.expect.quarantine import check_columns
from noetl.adapters.spark.job.expect.rules import check_rule
from noetl.adapters.spark.job.expect.sorting import Sorted, Sorting
from noetl.adapters.spark.job.failures import JobInvalid, bounded
from noetl.adapters.spark.job.modes.sql import query_frame
from noetl.adapters.spark.job.outputs import Written, told
from noetl.core.errors import Failure
from noetl.ports.data.compute import Expectation, Verdict

_TOLD_MAX = 5


@dataclass(slots=True)
class Judgement:
    """Outputs as they may be published, and what the rules said."""

    outputs: dict[str, Written]
    quarantines: list[Written] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def failure(self) -> Failure | None:
        """The failure of the step if a rule is broken whose rows are not set aside."""
        broken = [one for one in self.verdicts if not one.is_met and one.quarantine is None]
        if not broken:
            return None
        told_ones = "; ".join(one.message or one.name for one in broken[:_TOLD_MAX])
        more = f"; and {len(broken) - _TOLD_MAX} more rules" if len(broken) > _TOLD_MAX else ""
        hint = "Nothing was published. Correct the rows or the rule; `on_break: quarantine` sets such rows aside"
        if all(one.kind == "row_count" for one in broken):
            hint = "Nothing was published. Look at the inputs of the step, or correct the rule"
        return Failure(
            kind="schema",
            code="SPARK_EXPECTATION",
            message=bounded(f"{told_ones}{more}. {hint}"),
            details={"rules": [one.name for one in broken[:_TOLD_MAX]], "broken": sum(one.broken for one in broken)},
        )


def rules_by_output(rules: Sequence[Expectation], outputs: Sequence[str]) -> dict[str, list[Expectation]]:
    """Which rules are about which output.  Raises JobInvalid for one that is about none."""
    found: dict[str, list[Expectation]] = {name: [] for name in outputs}
    taken: set[str] = set()
    for rule in rules:
        if rule.name in taken:
            raise JobInvalid(f"expect: two rules are called {rule.name}: name them apart", "SPARK_RULE_INVALID")
        taken.add(rule.name)
        name = rule.of
        if not name and len(outputs) == 1:
            name = outputs[0]
        if name not in found:
            known = ", ".join(one for one in outputs if one) or "none with rows"
            what = f"is about {rule.of}" if rule.of else "must say which output it is about (`of`)"
            raise JobInvalid(f"expect, rule {rule.name}: it {what}; outputs are: {known}", "SPARK_RULE_INVALID")
        found[name].append(rule)
    return found


def check_rules(
    spark: SparkSession, frames: Mapping[str, DataFrame], by_output: Mapping[str, Sequence[Expectation]]
) -> None:
    """Look at all rules before anything is computed.  Raises ToolFailed."""

    def others(name: str) -> DataFrame:
        return frames[name] if name in frames else query_frame(spark, name)

    for name, rules in by_output.items():
        for rule in rules:
            check_rule(rule, frames[name], others)
        if any(rule.is_quarantine for rule in rules):
            check_columns(frames[name], name)


def judge(
    spark: SparkSession,
    written: Mapping[str, Written],
    by_output: Mapping[str, Sequence[Expectation]],
    about: Callable[[str], str],
) -> Judgement:
    """Hold all rules against what was written; rows of quarantines are out of the outputs then.

    An output comes after those that its rules refer to, so it is held against what they are published with."""
    sorting = Sorting(spark, written, by_output, about)
    sorting.settle(_in_order(by_output))
    found = Judgement(dict(written))
    for name, rules in by_output.items():
        one = sorting.finished(name)
        found.outputs[name] = one.kept
        if one.quarantine is not None:
            found.quarantines.append(one.quarantine)
        for rule in rules:
            found.verdicts.append(_judged(rule, one, name, written[name].rows))
    return found


def _judged(rule: Expectation, one: Sorted, name: str, rows: int) -> Verdict:
    if rule.kind == "row_count":
        return _verdict(rule, name, one.kept.rows, _row_count_broken(rule, one.kept.rows), is_aside=False)
    looked_at = rows if rule.is_quarantine else one.kept.rows
    return _verdict(rule, name, looked_at, one.counts[rule.name], is_aside=rule.is_quarantine)


def _in_order(by_output: Mapping[str, Sequence[Expectation]]) -> list[str]:
    """Outputs behind those that they refer to; in a circle the first one named comes first."""
    order: list[str] = []
    entered: set[str] = set()

    def visit(name: str) -> None:
        if name in entered:
            return
        entered.add(name)
        for rule in by_output[name]:
            if rule.to in by_output and rule.to is not None:
                visit(rule.to)
        order.append(name)

    for name in by_output:
        visit(name)
    return order


def _row_count_broken(rule: Expectation, rows: int) -> int:
    low, high = _number(rule, rule.low), _number(rule, rule.high)
    return int((low is not None and rows < low) or (high is not None and rows > high))


def _number(rule: Expectation, value: object) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise JobInvalid(f"expect, rule {rule.name}: {value!r} is no number of rows", "SPARK_RULE_INVALID")


def _verdict(rule: Expectation, name: str, rows: int, count: int, *, is_aside: bool) -> Verdict:
    message = f"{rule.name}: {_what(rule, told(name), rows, count)}" if count else None
    return Verdict(
        name=rule.name,
        kind=rule.kind,
        of=name,
        is_met=count == 0,
        rows=rows,
        broken=count,
        message=message,
        quarantine=name if count and is_aside else None,
    )


def _what(rule: Expectation, label: str, rows: int, count: int) -> str:
    columns = ", ".join(rule.columns)
    those = f"{count:,} of {rows:,} rows of {label}"
    if rule.kind == "row_count":
        return f"{label} has {rows:,} rows, and {_bounds(rule)} are expected"
    if rule.kind == "not_null":
        return f"{those} have no value in {columns}"
    if rule.kind == "unique":
        return f"{those} share their {columns} with another row"
    if rule.kind == "range":
        return f"{those} have a value of {columns} that is not {_bounds(rule)}"
    if rule.kind == "references":
        return f"{those} have a value of {columns} that {rule.to} does not have"
    return f"{those} do not fulfil {rule.sql}"


def _bounds(rule: Expectation) -> str:
    if rule.low is not None and rule.high is not None:
        return f"{rule.low} to {rule.high}"
    return f"at least {rule.low}" if rule.low is not None else f"at most {rule.high}"
