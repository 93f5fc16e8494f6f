"""What the documents tell a reader to type works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.cli.main import _parser
from noetl.core.playbook.compile import compile_playbook
from noetl.wiring.tools import tool_kinds
from tests.support.cli import QUICK_CLASSES, Cli, cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What a reader types first, with nothing running: these host themselves.
FIRST = ("noetl demo", "noetl run examples/hello_world.yaml")
# A driver of Spark costs many seconds; test_shapes.py runs the same file by the same command.
SLOW = ("noetl run examples/spark_join.yaml",)


def commands() -> list[str]:
    found = []
    for document in DOCUMENTS:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.S | re.M):
            if language in ("", "sh"):
                found += [line.split("#")[0].strip() for line in block.splitlines() if line.startswith("noetl ")]
    assert set(FIRST) <= set(found)
    # Each once: a second time proves nothing.  `down` is the last, for everything behind it would start a host again.
    return sorted(dict.fromkeys(found), key="noetl down".__eq__)


@pytest.fixture(scope="module")
def noetl() -> Iterator[Cli]:
    with cli(**QUICK_CLASSES) as command:
        yield command


@pytest.fixture(scope="module")
def hosted(noetl: Cli) -> Cli:
    """With a host, so that each line pays for one process only."""
    assert noetl("up").code == 0
    return noetl


@pytest.fixture(scope="module")
def execution_ids(hosted: Cli) -> dict[str, str]:
    """What stands for `<execution id>`, and for `<loop id>`: an execution with a loop."""
    examples = {"<execution id>": "hello_world.yaml", "<loop id>": "parallel_loop.yaml"}
    runs = {name: hosted("run", str(ROOT / "examples" / file), "--json") for name, file in examples.items()}
    return {name: str(done.json["execution_id"]) for name, done in runs.items()}


@pytest.mark.parametrize("line", FIRST)
def test_what_a_reader_types_first_works_with_nothing_running(noetl: Cli, line: str) -> None:
    done = noetl(*shlex.split(line.replace("examples/", f"{ROOT}/examples/"))[1:])
    assert done.code == 0, done.stderr
    assert noetl("down").stdout.strip() == "nothing was running"


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.long] if line in SLOW else []) for line in commands() if line not in FIRST],
)
def test_every_noetl_command_of_the_documents_works(hosted: Cli, execution_ids: dict[str, str], line: str) -> None:
    noetl = hosted
    words = shlex.split(re.sub(r"<[^>]*>", lambda name: execution_ids[name[0]], line))[1:]
    # A path of the catalog may look like a file; only what is one is made absolute.
    words = [str(ROOT / word) if word.startswith("examples/") and (ROOT / word).exists() else word for word in words]
    done = noetl(*words)
    assert done.code == 0, done.stderr


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def playbooks() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        blocks = re.findall(r"^```yaml\n(.*?)^```", document.read_text(), re.S | re.M)
        found += [(document.name, block) for block in blocks if block.startswith("apiVersion:")]
    assert found
    return found


@pytest.mark.parametrize(("document", "block"), playbooks(), ids=[name for name, _ in playbooks()])
def test_every_playbook_of_the_documents_is_valid_and_has_no_warning(document: str, block: str) -> None:
    assert compile_playbook(block, file=document, kinds=tool_kinds()).warnings == ()


def test_every_verb_has_a_help_text() -> None:
    help_text = _parser().format_help()
    for verb in ("run", "validate", "status", "list", "events", "up", "down", "migrate", "bench"):
        assert verb in help_text
