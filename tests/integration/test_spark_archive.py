"""The class archive never stands in the way: not when it is damaged or foreign, nor while it is built."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from noetl.adapters.spark.runtime import archive
from noetl.adapters.spark.runtime.java import Java, find_java
from noetl.adapters.spark.runtime.launch import class_path, jars, spark_flags, spark_folder
from noetl.adapters.spark.runtime.options import SparkOptions
from tests.support.cli import cli
from tests.support.spark import quick_options
from tests.unit.test_spark_java import made

HOME = spark_folder()
JARS = jars(HOME)


@pytest.fixture
def options(tmp_path: Path) -> SparkOptions:
    return replace(quick_options(tmp_path / "spark"), classes=tmp_path / "classes")


@pytest.fixture
def java(options: SparkOptions) -> Java:
    return find_java(options).java


def launched(java: Java, *flags: str) -> subprocess.CompletedProcess[str]:
    """Spark's launcher, a small program with the class path of a driver."""
    command = [java.executable, *spark_flags(java), "-Xlog:disable", "-cp", class_path(HOME, {}, ()), *flags]
    return subprocess.run(
        [*command, "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"],
        env={"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def small_archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real one, of few classes."""
    folder = tmp_path_factory.mktemp("small")
    made = launched(find_java(quick_options(folder)).java, f"-XX:ArchiveClassesAtExit={folder / 'small.jsa'}")
    assert made.returncode == 0, made.stderr
    return (folder / "small.jsa").read_bytes()


def published(options: SparkOptions, java: Java, content: bytes) -> Path:
    file = archive.archive_file(options, java, JARS)
    options.classes.mkdir(exist_ok=True)
    new = options.classes / "new"
    new.write_bytes(content)
    archive.publish(new, file)
    return file


def mixed_up(content: bytes) -> bytes:
    """Damage in many places behind the header, all over the classes."""
    changed = bytearray(content)
    for place in range(8192, len(changed), 4096):
        changed[place] ^= 0xFF
    return bytes(changed)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(mixed_up, id="bytes"),
        pytest.param(lambda content: bytes(len(content)), id="zeros"),
        pytest.param(lambda content: b"\xff" * 64 + content[64:], id="header"),
    ],
)
def test_a_jvm_starts_with_a_damaged_archive(
    options: SparkOptions, java: Java, small_archive: bytes, damage: Callable[[bytes], bytes]
) -> None:
    file = published(options, java, small_archive)
    whole = archive.flags(options, java, JARS)
    assert launched(java, *whole, "-Xshare:on").returncode == 0
    file.unlink()
    file.write_bytes(damage(small_archive))
    assert archive.flags(options, java, JARS) == whole
    assert launched(java, *whole, "-Xshare:on").returncode != 0, "the damage is not noticed"
    done = launched(java, *whole)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_jvm_starts_with_the_archive_of_another_class_path(
    options: SparkOptions, java: Java, small_archive: bytes
) -> None:
    published(options, java, small_archive)
    flags = archive.flags(options, java, JARS)
    command = [java.executable, *spark_flags(java), "-Xlog:disable", *flags, "-cp", ":".join(map(str, JARS[:3]))]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True, check=True)
    assert java.version in done.stderr


def test_the_name_of_an_archive_is_that_of_java_jars_and_spark(
    options: SparkOptions, java: Java, tmp_path: Path
) -> None:
    copies = []
    for name in ("a.jar", "b.jar"):
        copy = tmp_path / name
        copy.write_bytes(b"jar")
        copies.append(copy)
    name = archive.archive_file(options, java, copies).name
    assert name == archive.archive_file(options, java, copies).name
    assert name != archive.archive_file(options, java, copies[:1]).name
    assert name != archive.archive_file(options, replace(java, identity="other"), copies).name
    os.utime(copies[1], (1, 1))
    assert name != archive.archive_file(options, java, copies).name


def test_no_archive_and_half_of_one_are_not_used(options: SparkOptions, java: Java) -> None:
    assert archive.flags(options, java, JARS) == []
    content = bytes(archive._BYTES_MIN)
    file = published(options, java, content)
    assert archive.flags(options, java, JARS) != []
    # A JVM dies of an archive that ends too early.
    file.write_bytes(content[:-1])
    assert archive.flags(options, java, JARS) == []
    file.write_bytes(content)
    # It stands on the archive of Java's own classes, which some runtimes come without.
    bare = replace(java, home=Path("/nowhere"))
    assert archive.flags(options, bare, JARS) == []
    new = options.classes / "new"
    new.write_bytes(content)
    archive.publish(new, archive.base_file(options, bare))
    assert f"{archive.base_file(options, bare)}:{file}" in archive.flags(options, bare, JARS)[0]


def test_archives_that_nobody_uses_any_more_go(tmp_path: Path) -> None:
    for number in range(archive.ARCHIVES_MAX + 2):
        new, file = tmp_path / "new", tmp_path / f"spark-{number}.jsa"
        new.write_bytes(bytes(archive._BYTES_MIN))
        archive.publish(new, file)
        os.utime(file, (number, number))
    archive.keep_newest_only(tmp_path)
    assert not list(tmp_path.glob("spark-[01].*"))
    assert len(list(tmp_path.iterdir())) == 2 * archive.ARCHIVES_MAX


def test_one_builder_at_a_time_and_nobody_waits_for_it(options: SparkOptions, java: Java) -> None:
    file = archive.archive_file(options, java, JARS)
    assert archive.state(options, java, JARS) == "missing"
    with archive.building(file, waits=False) as is_mine:
        assert is_mine
        with archive.building(file, waits=False) as is_second:
            assert not is_second
        assert archive.state(options, java, JARS) == "building"
        assert archive.build_later(options, java, JARS) is None
    assert archive.state(options, java, JARS) == "missing"


def test_what_failed_is_not_tried_again_for_a_day(options: SparkOptions, java: Java) -> None:
    file = archive.archive_file(options, java, JARS)
    file.parent.mkdir()
    archive.record_failure(file, "no room")
    assert archive.state(options, java, JARS) == "failed"
    assert archive.build_later(options, java, JARS) is None
    yesterday = time.time() - 25 * 3600
    os.utime(file.with_suffix(".failed"), (yesterday, yesterday))
    assert archive.state(options, java, JARS) == "missing"


def test_one_that_a_jvm_did_not_start_with_is_gone(options: SparkOptions, java: Java) -> None:
    file = published(options, java, bytes(archive._BYTES_MIN))
    archive.set_aside(options, java, JARS)
    assert not file.exists()
    assert archive.state(options, java, JARS) == "failed"


def test_a_folder_that_cannot_be_written_delays_nobody(options: SparkOptions, java: Java, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert archive.build_later(replace(options, classes=tmp_path / "file" / "below"), java, JARS) is None
    assert archive.build_later(replace(options, master="yarn"), java, JARS) is None


def test_it_is_published_whole_or_not_at_all(options: SparkOptions, java: Java, tmp_path: Path) -> None:
    file = archive.archive_file(options, java, JARS)
    file.parent.mkdir()
    half = tmp_path / "half"
    half.write_bytes(b"begun")
    with pytest.raises(OSError, match="is no archive"):
        archive.publish(half, file)
    assert not file.exists()


# --- the command line ------------------------------------------------------------------------------------


def test_info_says_what_drivers_find(tmp_path: Path) -> None:
    variables = {"MASTER": "local[3]", "DRIVER_MEMORY_MB": "700", "UI": "0", "CLASSES_DIR": ""}
    with cli(**{f"NOETL_SPARK_{name}": value for name, value in variables.items()}) as noetl:
        plain = noetl("spark", "info", "--json")
        text = noetl("spark", "info")
    assert plain.code == text.code == 0, plain.stderr + text.stderr
    found = plain.json
    assert (found["master"], found["driver_memory_bytes"], found["ui"]) == ("local[3]", 700 * 1024**2, False)
    assert found["archive"]["state"] == "missing"
    assert Path(found["archive"]["path"]).parent == noetl.home / "spark" / "classes"
    assert found["java"]["home"] in text.stdout
    assert "UI          off" in text.stdout


def test_prepare_with_a_java_that_does_not_run_says_so_and_is_remembered(tmp_path: Path) -> None:
    broken = made(tmp_path / "broken", 'JAVA_VERSION="17.0.99"\n')
    with cli(JAVA_HOME=str(broken), NOETL_SPARK_CLASSES_DIR=str(tmp_path / "classes")) as noetl:
        done = noetl("spark", "prepare")
        shown = noetl("spark", "info", "--json")
    assert done.code == 1
    assert "the class archive is not there: " in done.stderr
    assert "-XX:" not in done.stderr, "no command line"
    assert shown.json["archive"]["state"] == "failed"
    assert json.dumps(shown.json["archive"]["failure"]) in shown.stdout


def test_a_folder_that_is_none_is_told_and_nobody_is_said_to_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with cli(NOETL_SPARK_CLASSES_DIR=str(tmp_path / "file")) as noetl:
        shown = noetl("spark", "info", "--json")
        done = noetl("spark", "prepare")
    assert shown.json["archive"]["state"] == "missing"
    assert done.code != 0
    assert f"cannot be kept in {tmp_path / 'file'}: " in done.stderr
    assert "NOETL_SPARK_CLASSES_DIR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_an_archive_that_was_prepared_is_used(tmp_path: Path) -> None:
    with cli(NOETL_SPARK_CLASSES_DIR=str(tmp_path)) as noetl:
        done = noetl("spark", "prepare", "--json", timeout=600)
    assert done.code == 0, done.stderr
    assert done.json["archive"]["state"] == "ready"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsa", ".lock", ".size"]
    options = replace(quick_options(tmp_path / "spark"), classes=tmp_path)
    java = find_java(options).java
    command = [java.executable, *spark_flags(java), *archive.flags(options, java, JARS), "-Xshare:on"]
    subprocess.run([*command, "-cp", class_path(HOME, {}, ()), "-version"], capture_output=True, check=True)
