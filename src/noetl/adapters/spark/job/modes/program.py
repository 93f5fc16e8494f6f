"""A job that is Python text with a `main`."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import SparkSession

from noetl.adapters.spark.job.failures import JobInvalid

FILE = "main.py"


@contextmanager
def loaded(text: str, folder: Path, job_id: str) -> Iterator[ModuleType]:
    """The program as a module of its own, from a file, so that tracebacks show its lines.

    Its functions and classes go to executors by value: no other process can import them."""
    path = folder / FILE
    path.write_text(text, encoding="utf-8")
    name = "noetl_job_" + "".join(letter if letter.isalnum() else "_" for letter in job_id)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
        sys.modules.pop(name, None)
        linecache.cache.pop(str(path), None)


def call_main(module: ModuleType, spark: SparkSession, inputs: Mapping[str, object]) -> object:
    """What `main` returns; it gets those inputs that its signature takes."""
    main = getattr(module, "main", None)
    if main is None:
        raise JobInvalid("the code has no function main: write `def main(spark, **inputs):`", "SPARK_MAIN_MISSING")
    if not callable(main) or inspect.iscoroutinefunction(main):
        raise JobInvalid("main must be an ordinary function: `def main(spark, **inputs):`", "SPARK_MAIN_INVALID")
    return main(spark, **_taken(main, inputs))


def _taken(main: Callable[..., object], inputs: Mapping[str, object]) -> dict[str, object]:
    parameters = list(inspect.signature(main).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        message = "main must take the session first: write `def main(spark, **inputs):`"
        raise JobInvalid(message, "SPARK_MAIN_INVALID")
    rest = [] if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL else parameters[1:]
    missing = [
        parameter.name
        for parameter in rest
        if parameter.name not in inputs
        and parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if missing:
        known = ", ".join(inputs) or "none"
        message = f"main takes {', '.join(missing)}, which `inputs` does not have; inputs are: {known}"
        raise JobInvalid(message, "SPARK_INPUT_MISSING")
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in rest):
        return {name: value for name, value in inputs.items() if name != parameters[0].name}
    return {parameter.name: inputs[parameter.name] for parameter in rest if parameter.name in inputs}
