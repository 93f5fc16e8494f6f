"""Nothing of the language is left without a test: the items of its checklist, the ten shapes, and every line of the
tables of forms that are refused or accepted with a warning.

Tests are found by name, in whatever folder they stand: parts of the language are proved beside the parts of the engine
that run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_negative_table import DOCUMENTS, OTHERS, REJECTED, WARNED

TESTS = Path(__file__).parents[1]

CHECKLIST = [f"12_{number:02d}" for number in range(1, 27)]
SHAPES = [f"s{number}" for number in range(1, 11)]

# The clauses of "Reject at registration" (dsl §11), the documents of §1.1 and the retired keys of §2.1.
REJECTIONS = (
    *("YAML error", "empty `workflow`", "duplicate step names", "unknown arc target", "unknown `next`"),
    *("jump to an absent label", "duplicate task labels", "apiVersion", "kind", "metadata.name", "root `vars`"),
    *("step `case`", "step `type`", "step `vars`", "step `sink`", "step-level `retry`", "step `result`"),
    *("step `outcome`", "tool `eval`", "`expr` in rules", "`expr` in arcs", "`set_vars` of a step"),
    *("`set_vars` of a task", "`set_vars` of a rule", "`set_vars` of an arc"),
    *("`spec.next_mode` with another `next.spec.mode`", "scalar `tool`", "step with neither `tool` nor `next`"),
    *("empty list of tools", "tool without `kind`", "`loop` without `iterator`", "`loop` with both `in` and `cursor`"),
    *("`loop` with neither `in` nor `cursor`", "unknown `loop.spec.mode`", "unknown `next.spec.mode`"),
    *("unknown `then.do`", "unknown `on_no_match`", "`jump` without `to`", "unknown tool kind"),
    *("unknown workbook name", "direct connection fields of postgres", "executor.spec.entry_step"),
    *("executor.spec.final_step", "executor.requires.tools"),
)
# The rows of "Accept with a warning".
WARNINGS = (
    *("`else` without `then`", "`{else: null, then: …}`", "`when: true` (boolean)", "`backoff: fixed`"),
    *("tool fields inside `spec`", "`credential:` on postgres", "tool `args`", "`payload` on playbook"),
    *("tool-level `retry`", "`output_select` lists", "root `spec` as inputs", "arc `cond`", "`libs` list"),
    *("`result` / `response` names", "python-task `iterator`", "templates in `frame` numbers"),
    *("`next` list of names", "`next` list of arcs", "`next` string", "label-as-key tasks", "`set_ctx`", "`set_iter`"),
    *("`outcome`", "arc `args`", "`event.name == 'step.done'`"),
)


def names_of_tests() -> dict[str, Path]:
    """Every test function under `tests`, by name."""
    found: dict[str, Path] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        found |= dict.fromkeys(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.M), path)
    return found


NAMES = names_of_tests()


@pytest.mark.parametrize("item", CHECKLIST)
def test_every_item_of_the_checklist_has_a_test(item: str) -> None:
    assert [name for name in NAMES if name.startswith(f"test_{item}_")]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_test(shape: str) -> None:
    assert [name for name in NAMES if re.match(rf"test_{shape}_", name)]


@pytest.mark.parametrize("words", REJECTIONS)
def test_every_rejection_is_in_the_table(words: str) -> None:
    assert (words in REJECTED) != (words in DOCUMENTS)


@pytest.mark.parametrize("words", WARNINGS)
def test_every_warning_is_in_the_table(words: str) -> None:
    assert (words in WARNED) != (words in OTHERS)


@pytest.mark.parametrize("words", OTHERS)
def test_a_row_that_points_to_another_test_points_to_one_that_exists(words: str) -> None:
    assert OTHERS[words] in NAMES


def test_the_tables_have_no_row_that_nobody_asked_for() -> None:
    assert {*REJECTED, *DOCUMENTS} == set(REJECTIONS)
    assert set(OTHERS) <= set(WARNINGS)
