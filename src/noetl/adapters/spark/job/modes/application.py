"""A job that is an existing PySpark program, run as a process of its own with Spark's settings and Java of this driver.

The program is told its folders by its environment: NOETL_INPUT_<NAME>, NOETL_OUTPUT and NOETL_OUTPUT_<NAME>."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from noetl.adapters.spark import runtime
from noetl.adapters.spark.job.failures import JobInvalid, bounded
from noetl.adapters.spark.job.inputs import folder_name, land_rows
from noetl.adapters.spark.job.modes.supervised import Supervised
from noetl.adapters.spark.job.report import JobReport
from noetl.core.errors import Failure, ToolFailed
from noetl.ports.data.compute import JobInput, SparkJob

# What belongs to the driver that runs now, and would be wrong or taken for a second one.
_OWN = (
    "spark.app.id",
    "spark.app.startTime",
    "spark.app.submitTime",
    "spark.app.initial.jar.urls",
    "spark.blockManager.port",
    "spark.driver.port",
    "spark.executor.id",
    "spark.port.maxRetries",
    "spark.submit.pyFiles",
    "spark.ui.port",
    "spark.ui.proxyBase",
)
_SETTINGS = "spark-defaults.conf"
_LOG_SETTINGS = Path(runtime.__file__).with_name("log4j2.properties")
# How this driver is spoken to.
_GATEWAY = ("_PYSPARK_", "PYSPARK_GATEWAY_", "PYSPARK_SUBMIT_ARGS")


class ApplicationFailed(ToolFailed):
    """`traceback` is what it wrote last to its standard error."""

    def __init__(self, failure: Failure, traceback: str | None) -> None:
        super().__init__(failure)
        self.traceback = traceback


def run_application(spark: SparkSession, job: SparkJob, report: JobReport) -> dict[str, Path]:
    """Run the program; the folders of its outputs by name.  Raises ApplicationFailed unless it ends with 0."""
    program = Path(job.text)
    if not program.is_file():
        raise JobInvalid(f"application: there is no file {program.name} at {program}", "SPARK_APPLICATION_MISSING")
    folders = {output.name: job.folder / "outputs" / folder_name(output.name) for output in job.outputs}
    (job.folder / "outputs").mkdir(parents=True, exist_ok=True)
    environment = _environment(spark, job, folders)
    command = [str(program.resolve()), *job.arguments]
    running = Supervised(command, folder=job.folder, environment=environment)
    report.on_cancel(running.end)
    code, tail = running.outcome(report)
    if code != 0:
        raise ApplicationFailed(_failure(program.name, code, tail), tail or None)
    return folders


def _failure(name: str, code: int, tail: str) -> Failure:
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    last = next((line for line in reversed(tail.splitlines()) if line.strip() and not line[0].isspace()), "")
    return Failure(
        kind="python",
        code="SPARK_APPLICATION_FAILED",
        message=bounded(f"the application {name} {ended}{f': {last}' if last else ''}"),
        details={"exit_code": code},
    )


# --- what the program finds --------------------------------------------------------------------------------


def _environment(spark: SparkSession, job: SparkJob, folders: Mapping[str, Path]) -> dict[str, str]:
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session has a virtual machine"
    system = jvm.java.lang.System
    # What this driver was started with, as its virtual machine has it; nothing in it is for our eyes only.
    found = {str(name): str(value) for name, value in system.getenv().items() if not name.startswith(_GATEWAY)}
    temporary = job.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        "PATH": os.defpath,
        "HOME": str(job.folder),
        "LANG": "C.UTF-8",
        "JAVA_HOME": str(system.getProperty("java.home")),
        **found,
        "TMPDIR": str(temporary),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_CONF_DIR": str(_settings(spark, job, found.get("SPARK_CONF_DIR"))),
        "NOETL_JOB_ID": job.job_id,
    }
    for one in job.inputs:
        environment[_variable("NOETL_INPUT", one.name)] = _input(spark, one, job.folder / "inputs")
    for name, folder in folders.items():
        environment[_variable("NOETL_OUTPUT", name)] = str(folder)
    if len(folders) == 1:
        environment["NOETL_OUTPUT"] = str(next(iter(folders.values())))
    return environment


def _variable(prefix: str, name: str) -> str:
    word = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name).upper()
    return f"{prefix}_{word}" if word else prefix


def _input(spark: SparkSession, one: JobInput, root: Path) -> str:
    """The folder or file of an input; of a plain value a file with its JSON."""
    root.mkdir(exist_ok=True)
    landed = land_rows(spark, one, root / folder_name(one.name))
    if landed is not None:
        return landed[0]
    if one.kind in ("dataset", "source") and one.path is not None:
        return one.path
    if one.kind == "value":
        file = root / f"{folder_name(one.name)}.json"
        file.write_text(json.dumps(one.value, ensure_ascii=False), encoding="utf-8")
        return str(file)
    message = (
        f"input {one.name}: an application gets folders and files, and a {one.kind} has none: read it in the program"
    )
    raise JobInvalid(message, "SPARK_INPUT_INVALID")


def _settings(spark: SparkSession, job: SparkJob, beside: str | None) -> Path:
    """A folder with the settings of this driver and of the job, for nobody else's eyes; and what else is in the folder
    `beside` that this driver has its own from."""
    folder = job.folder / "conf"
    folder.mkdir(mode=0o700, exist_ok=True)
    others = [*Path(beside).iterdir()] if beside and Path(beside).is_dir() else []
    for other in (*others, _LOG_SETTINGS):
        if other.name != _SETTINGS and not (folder / other.name).exists():
            (folder / other.name).symlink_to(other.resolve())
    settings = {name: value for name, value in spark.sparkContext.getConf().getAll() if name not in _OWN}
    settings |= {"spark.app.name": job.title, "spark.submit.deployMode": "client", **job.conf}
    text = "".join(f"{name} {_escaped(value)}\n" for name, value in sorted(settings.items()))
    file = folder / _SETTINGS
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")
    return folder


def _escaped(value: str) -> str:
    """A value as a line of a Java properties file has it."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text[:1] in (" ", "\t", "=", ":") else text


def missing_outputs(folders: Mapping[str, Path]) -> Sequence[str]:
    """Outputs that the program wrote nothing for."""
    return [name for name, folder in folders.items() if not folder.is_dir()]
