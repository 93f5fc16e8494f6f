"""What is wrong with a rule, in the words of all rules."""

from __future__ import annotations

from noetl.adapters.spark.job.failures import JobInvalid
from noetl.ports.data.compute import Expectation


def invalid(rule: Expectation, what: str) -> JobInvalid:
    return JobInvalid(f"expect, rule {rule.name}: it {what}", "SPARK_RULE_INVALID")
