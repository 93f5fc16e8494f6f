"""No check speaks up about a playbook that is right: neither about those of the corpus nor about those we publish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from noetl.core.playbook.compile import compile_playbook
from tests.support.corpus import CORPUS, KINDS

ROOT = Path(__file__).parents[2]
CODES = ("unknown_name", "never_ran_before", "unbounded_loop")
FILES = [*sorted(ROOT.glob("examples/*.yaml")), *sorted(ROOT.glob("src/noetl/cli/demo/*.yaml"))]
_FENCE = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def published() -> dict[str, str]:
    """Whole playbooks in the guides; what is only a part of one is not looked at."""
    found = {path.name: path.read_text("utf-8") for path in FILES}
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        for number, block in enumerate(_FENCE.findall(page.read_text("utf-8"))):
            if "apiVersion" in block:
                found[f"{page.name} {number}"] = block
    return found


def complaints(name: str, text: str) -> list[str]:
    compiled = compile_playbook(text, file=name, kinds=KINDS)
    return [str(warning) for warning in compiled.warnings if warning.code in CODES]


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_has_no_slip(name: str) -> None:
    assert complaints(name, CORPUS[name]) == []


def test_what_we_publish_has_no_slip() -> None:
    texts = published()
    assert len(texts) >= len(FILES) >= 6
    assert [found for name, text in texts.items() for found in complaints(name, text)] == []


@pytest.mark.parametrize("name", CORPUS)
def test_every_name_of_the_corpus_is_looked_at(name: str) -> None:
    """Renaming what a template reads is noticed, in most places; where a name is asked about first, it need not be."""
    text = CORPUS[name]
    noticed = total = 0
    for found in re.finditer(r"\{\{ (?:ctx\.|workload\.|steps\.)?([a-z_]{3,})(?=[ .|\[])", text):
        if found[1] in ("payload", "not", "token", "now", "keychain"):
            continue
        total += 1
        changed = text[: found.start(1)] + found[1] + "x" + text[found.end(1) :]
        noticed += bool(complaints(name, changed))
    assert noticed >= 0.7 * total
    assert total > 3
