"""Which rows stay in outputs and which are set aside, until the rules hold for what stays.

A row that is set aside may be the one that others refer to.  So rules about references are looked at again, among the
rows that are left, as long as an output that they refer to loses rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from noetl.adapters.spark.job.expect.counting import count_broken, key_count
from noetl.adapters.spark.job.expect.quarantine import beside, count_marks, kept_rows, mark, part
from noetl.adapters.spark.job.failures import JobInvalid
from noetl.adapters.spark.job.modes.sql import query_frame
from noetl.adapters.spark.job.outputs import Written, read_written, told
from noetl.core import limits
from noetl.ports.data.compute import Expectation


@dataclass(frozen=True, slots=True)
class Sorted:
    """An output as it may be published, and how many rows break its rules."""

    kept: Written
    quarantine: Written | None
    counts: Mapping[str, int]


@dataclass(slots=True)
class _Output:
    staged: Written
    aside: list[Expectation]
    strict: list[Expectation]
    counts: dict[str, int] = field(default_factory=dict)
    marked: Written | None = None
    bad_rows: int = 0
    rounds: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    """How many rows of the outputs that it refers to were set aside when its rules were looked at."""


class Sorting:
    """The outputs of one job on their way from what was written to what is published."""

    def __init__(
        self,
        spark: SparkSession,
        written: Mapping[str, Written],
        by_output: Mapping[str, Sequence[Expectation]],
        about: Callable[[str], str],
    ) -> None:
        self._spark = spark
        self._about = about
        self._outputs = {name: _Output(staged, *_parted(by_output.get(name, ()))) for name, staged in written.items()}

    def settle(self, order: Sequence[str]) -> None:
        """Look at all rules, and again at those for which something has changed."""
        for name in order:
            self._look(name)
        while changed := [name for name in order if self._is_outdated(self._outputs[name])]:
            for name in changed:
                self._look_again(name)

    def finished(self, name: str) -> Sorted:
        """Call it when all are settled."""
        one = self._outputs[name]
        if one.marked is None or not one.bad_rows:
            return Sorted(one.staged, None, one.counts)
        kept, quarantine = part(self._spark, one.staged, one.marked, bad_rows=one.bad_rows, about=self._about(name))
        # What is published has fewer rows than what was counted.
        strict = count_broken(
            read_written(self._spark, kept), one.strict, self._others, rows=kept.rows, label=told(name)
        )
        return Sorted(kept, quarantine, one.counts | strict)

    def _look(self, name: str) -> None:
        one = self._outputs[name]
        one.seen = self._set_aside(one)
        frame = read_written(self._spark, one.staged)
        rules = [*one.aside, *one.strict]
        one.counts = count_broken(frame, rules, self._others, rows=one.staged.rows, label=told(name))
        self._mark(name, one, one.staged, [rule for rule in one.aside if one.counts[rule.name]])

    def _look_again(self, name: str) -> None:
        """Only references can be broken by rows that are gone, and only for rows that are still there."""
        one = self._outputs[name]
        now = self._set_aside(one)
        targets = {to for to, rows in now.items() if one.seen.get(to) != rows}
        one.seen = now
        frame = self._kept(one)
        at_fault = []
        for rule in (*one.aside, *one.strict):
            if rule.kind == "references" and rule.to in targets:
                count = key_count(frame, rule, self._others)
                if not rule.is_quarantine:
                    one.counts[rule.name] = count
                elif count:
                    at_fault.append(rule)
        self._mark(name, one, one.marked or one.staged, at_fault)

    def _mark(self, name: str, one: _Output, rows: Written, rules: Sequence[Expectation]) -> None:
        if not rules:
            return
        one.rounds += 1
        rounds_max = limits.SPARK_QUARANTINE_ROUNDS_MAX
        if one.rounds > rounds_max:
            message = (
                f"expect, rule {rules[0].name}: after {rounds_max} rounds rows still refer to rows of "
                f"{told(name)} that were set aside in the round before: nothing was published. Take such chains apart "
                f"in the program, or use `on_break: fail` for this rule"
            )
            raise JobInvalid(message, "SPARK_RULE_INVALID")
        one.marked = mark(
            self._spark,
            rows,
            rules,
            self._others,
            folder=beside(one.staged.folder, f"marked-{one.rounds}"),
            about=f"{self._about(name)}: rows and the rules they break, round {one.rounds}",
        )
        # What counts is what was written: a rule may have had another answer when it was counted.
        one.bad_rows, counts = count_marks(self._spark, one.marked, one.aside)
        one.counts |= counts

    def _is_outdated(self, one: _Output) -> bool:
        return self._set_aside(one) != one.seen

    def _set_aside(self, one: _Output) -> dict[str, int]:
        targets = {rule.to for rule in (*one.aside, *one.strict) if rule.kind == "references"}
        return {to: self._outputs[to].bad_rows for to in targets if to is not None and to in self._outputs}

    def _kept(self, one: _Output) -> DataFrame:
        return read_written(self._spark, one.staged) if one.marked is None else kept_rows(self._spark, one.marked)

    def _others(self, name: str) -> DataFrame:
        return self._kept(self._outputs[name]) if name in self._outputs else query_frame(self._spark, name)


def _parted(rules: Sequence[Expectation]) -> tuple[list[Expectation], list[Expectation]]:
    """Rules that set rows aside, and those that fail the step."""
    aside = [rule for rule in rules if rule.is_quarantine and rule.kind != "row_count"]
    return aside, [rule for rule in rules if rule not in aside]
