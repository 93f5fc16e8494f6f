"""One job from its inputs to its outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from noetl.adapters.spark.job.activity import active
from noetl.adapters.spark.job.expect.verdicts import Judgement, check_rules, judge, rules_by_output
from noetl.adapters.spark.job.facts import facts_of
from noetl.adapters.spark.job.failures import JobInvalid, describe
from noetl.adapters.spark.job.inputs import folder_name, read_inputs, read_stored
from noetl.adapters.spark.job.modes.application import ApplicationFailed, missing_outputs, run_application
from noetl.adapters.spark.job.modes.program import FILE, call_main, loaded
from noetl.adapters.spark.job.modes.sql import query_frame, run_statements
from noetl.adapters.spark.job.outputs import Written, adopt, fit_frame, read_written, told, write
from noetl.adapters.spark.job.parquet import store
from noetl.adapters.spark.job.report import JobReport
from noetl.adapters.spark.job.values import arrow_of, is_tabular, plain_value
from noetl.core.errors import ToolFailed
from noetl.core.playbook.spark.shapes import RESERVED_OUTPUTS
from noetl.ports.data.compute import JobDataset, JobFacts, JobOutcome, JobOutput, SparkJob

# What a result has of the rows that have no name.
ROWS_KEYS = frozenset(("rows", "dataset", "row_count", "columns", "value"))


@dataclass(slots=True)
class _Given:
    """What the program gave: rows that are to be written, rows that are written, and plain values."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)


def perform(spark: SparkSession, job: SparkJob, report: JobReport) -> JobOutcome:
    """Run a job in a session of its own; what goes wrong in it is in the outcome.

    Whoever calls has applied the job's settings, and has made the job's id the job group of the thread.  Raises only
    when Spark's virtual machine does not answer any more."""
    started = time.monotonic()
    outcome = JobOutcome()
    try:
        outcome = _performed(spark, job, report)
    except Py4JNetworkError:
        raise
    except Exception as error:  # a job may raise anything: it becomes data here
        failure, trace = describe(error, filename=str(job.folder / FILE))
        trace = error.traceback if isinstance(error, ApplicationFailed) else trace
        outcome = JobOutcome(failure=failure, traceback=trace)
    return JobOutcome(
        datasets=outcome.datasets,
        values=outcome.values,
        verdicts=outcome.verdicts,
        facts=_facts(spark, job, round((time.monotonic() - started) * 1000)),
        failure=outcome.failure,
        traceback=outcome.traceback,
    )


def _performed(spark: SparkSession, job: SparkJob, report: JobReport) -> JobOutcome:
    # The program stays until its rows are written: some of its functions run only then.
    with ExitStack() as program:
        program.enter_context(active(spark))
        return _kept(spark, job, _given(spark, job, report, program))


def _kept(spark: SparkSession, job: SparkJob, given: _Given) -> JobOutcome:
    """Everything that was given as datasets and values, if the rules allow it."""
    names = [*given.frames, *given.written]
    by_output = rules_by_output(job.expectations, names)
    frames = {name: fit_frame(frame, _output(job, name)) for name, frame in given.frames.items()}
    looked_at = {**frames, **{name: read_written(spark, one) for name, one in given.written.items()}}
    check_rules(spark, looked_at, by_output)
    written = dict(given.written)
    for name, frame in frames.items():
        folder = job.folder / "outputs" / folder_name(name)
        written[name] = write(spark, frame, folder, output=_output(job, name), description=_about(job, name))
    found = judge(spark, written, by_output, lambda name: _about(job, name))
    failure = found.failure()
    return JobOutcome(
        datasets=() if failure else _datasets(found),
        values={} if failure else given.values,
        verdicts=tuple(found.verdicts),
        failure=failure,
    )


def _given(spark: SparkSession, job: SparkJob, report: JobReport, program: ExitStack) -> _Given:
    if job.mode == "application":
        return _of_application(spark, job, report)
    inputs = read_inputs(spark, job)
    program.callback(inputs.release, spark)
    if job.mode == "sql":
        return _of_sql(spark, job, run_statements(spark, job.text))
    module = program.enter_context(loaded(job.text, job.folder, job.job_id))
    return _of_value(spark, job, call_main(module, spark, inputs.all()))


def _of_sql(spark: SparkSession, job: SparkJob, result: DataFrame | None) -> _Given:
    named = [output for output in job.outputs if output.name]
    if named:
        return _Given(frames={output.name: _queried(spark, output) for output in named})
    only = job.outputs[0] if job.outputs else None
    if only is not None and only.query:
        return _Given(frames={"": _queried(spark, only)})
    return _Given(frames={"": result}) if result is not None else _Given()


def _queried(spark: SparkSession, output: JobOutput) -> DataFrame:
    try:
        return query_frame(spark, output.query or output.name)
    except (PySparkException, Py4JJavaError) as error:
        raise ToolFailed(describe(error, where=told(output.name))[0]) from error


def _of_value(spark: SparkSession, job: SparkJob, value: object) -> _Given:
    named = [output for output in job.outputs if output.name]
    is_members = isinstance(value, Mapping) and (bool(named) or any(is_tabular(item) for item in value.values()))
    if isinstance(value, Mapping) and is_members:
        members = {str(name): item for name, item in value.items()}
        _check_members(members)
    elif len(named) == 1:
        members = {named[0].name: value}
    elif named:
        members = {} if value is None else {"": value}
    else:
        members = {"": value}
    if "" in members and any(output.name in ROWS_KEYS for output in named):
        names = ", ".join(sorted(ROWS_KEYS))
        message = f"main returned rows or a value without a name, beside which no output is called {names}: name both"
        raise JobInvalid(message, "OUTPUT_NAME")
    given = _Given()
    for output in named:
        if output.name not in members and output.query:
            given.frames[output.name] = _queried(spark, output)
        elif output.name not in members:
            what = ", ".join(name or type(value).__name__ for name in members) or "nothing"
            message = f"main must return {output.name}, for `outputs` names it; it returned {what}"
            raise JobInvalid(message, "OUTPUT_MISSING")
    for name, item in members.items():
        if isinstance(item, DataFrame):
            given.frames[name] = item
        elif is_tabular(item):
            given.frames[name] = _frame_of(spark, item, job.folder / "returned" / folder_name(name), name)
        else:
            given.values[name] = plain_value(item, name)
    return given


def _check_members(members: Mapping[str, object]) -> None:
    """A member is a key of the result, where some mean something already."""
    taken = [name for name in members if name in RESERVED_OUTPUTS or not name]
    if taken:
        words = ", ".join(sorted(RESERVED_OUTPUTS))
        message = f"main returned a member called {taken[0]!r}: no member may be without a name or called {words}"
        raise JobInvalid(message, "OUTPUT_NAME")


def _frame_of(spark: SparkSession, value: object, folder: Path, name: str) -> DataFrame:
    table = arrow_of(value, name)
    plan = store(table.schema, table.to_batches(), folder, cores=spark.sparkContext.defaultParallelism)
    return read_stored(spark, str(folder), plan)


def _of_application(spark: SparkSession, job: SparkJob, report: JobReport) -> _Given:
    folders = run_application(spark, job, report)
    missing = missing_outputs(folders)
    lacking = [name for name in missing if name]
    if lacking:
        message = f"the application wrote nothing for {', '.join(lacking)}: its folder is in NOETL_OUTPUT_<NAME>"
        raise JobInvalid(message, "OUTPUT_MISSING")
    written = {
        name: adopt(spark, folder, _output(job, name)) for name, folder in folders.items() if name not in missing
    }
    return _Given(written=written, values={} if written else {"": {"status": "ok", "exit_code": 0}})


def _output(job: SparkJob, name: str) -> JobOutput:
    """What is said about an output; of one that is not named, what is said about all."""
    by_name = {output.name: output for output in job.outputs}
    if name in by_name:
        return by_name[name]
    rest = by_name.get("", JobOutput(name=""))
    return JobOutput(name=name, partition_by=rest.partition_by, files=rest.files)


def _about(job: SparkJob, name: str) -> str:
    """How Spark's UI calls the writing of an output.  No other write has this text."""
    return f"{job.title}: {told(name)} [{job.job_id}]"


def _datasets(found: Judgement) -> tuple[JobDataset, ...]:
    return tuple(one.dataset() for one in [*found.outputs.values(), *found.quarantines])


def _facts(spark: SparkSession, job: SparkJob, wall_ms: int) -> JobFacts:
    try:
        return facts_of(spark, job.job_id, wall_ms=wall_ms)
    except Py4JJavaError:
        # Figures are no reason to lose a result.
        return JobFacts(wall_ms=wall_ms)
