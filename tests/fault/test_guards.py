"""Every guard is taken away in a copy of the product, and tests that stand for it must fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.fault.guards.copying import PACKAGE, ROOT, copy_without, text_without, whole_copy
from tests.fault.guards.guard import Guard
from tests.fault.guards.page import PAGE, guards_markdown
from tests.fault.guards.running import Outcome, is_of, quick_server, run
from tests.fault.guards.table import GUARDS
from tests.fault.guards.witness import is_about_behaviour
from tests.support.postgres import RunningServer

QUICK_MAX = 8
PARAMETERS = [pytest.param(one, id=one.name, marks=[] if one.is_quick else pytest.mark.long) for one in GUARDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The product with all its guards, and what the tests said about it."""

    copy: Path
    outcome: Outcome
    server: RunningServer | None


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Iterator[Whole]:
    """All tests of this run's guards, once: a test that fails anyway misses nothing."""
    gone = test_a_guard_that_is_gone_is_missed.__name__
    names = {item.name for item in request.session.items}
    asked = [one for one in GUARDS if f"{gone}[{one.name}]" in names]
    tests = sorted({test for one in asked for test in one.tests})
    with ExitStack() as held:
        server = held.enter_context(quick_server()) if any(one.has_database for one in asked) else None
        copy = held.enter_context(whole_copy())
        yield Whole(copy=copy, outcome=run(tests, over=copy, server=server), server=server)


@pytest.mark.parametrize("guard", PARAMETERS)
def test_a_guard_that_is_gone_is_missed(guard: Guard, whole: Whole) -> None:
    for test in guard.tests:
        assert any(is_of(one, test) for one in whole.outcome.passed), f"{test} did not run\n{whole.outcome.output}"
        failed = [one for one in whole.outcome.failed if is_of(one.test, test)]
        assert not failed, f"{test} fails although the guard is there\n{whole.outcome.output}"
    with copy_without(guard, whole.copy) as copy:
        outcome = run(guard.tests, over=copy, server=whole.server if guard.has_database else None)
    for test in guard.tests:
        missed = outcome.missed_by(test)
        assert missed, f"{test} does not miss the guard {guard.name!r}\n{outcome.failed}\n{outcome.output}"
        print(f"without {guard.name}: {missed[0].test}: {missed[0].says}")


# --- the table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", GUARDS, ids=lambda one: one.name)
def test_the_table_fits_the_source(guard: Guard) -> None:
    path = PACKAGE / guard.file
    text = text_without(guard, path.read_text("utf-8"))
    if path.suffix == ".py":
        compile(text, guard.file, "exec")
    assert guard.tests, "a guard that nobody stands for"
    for test in guard.tests:
        file, _, function = test.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), test


def test_guards_have_names_of_their_own_and_few_are_quick() -> None:
    names = [one.name for one in GUARDS]
    assert sorted(names) == sorted(set(names))
    quick = [one for one in GUARDS if one.is_quick]
    assert 0 < len(quick) <= QUICK_MAX
    assert not any(one.has_database for one in quick), "a database takes too long for every run"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == guards_markdown(GUARDS), "run: python -m tests.fault.guards"


# --- the runner can fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "guarded and guarded"], ids=["gone", "twice"])
def test_a_guard_that_was_moved_breaks_the_table(text: str) -> None:
    guard = Guard(name="x", keeps="", file="x.py", text="guarded", instead="", tests=())
    with pytest.raises(AssertionError, match="must occur once"):
        text_without(guard, text)


HARMLESS = Guard(
    name="a comment",
    keeps="nothing",
    file="core/snapshot/snapshot.py",
    text="whatever does not fit exactly is treated as if it were not there",
    instead="whatever does not fit",
    tests=("tests/unit/test_snapshot.py::test_a_snapshot_is_ignored",),
)
BROKEN = replace(
    HARMLESS, name="an import", text="from noetl.core.snapshot.version import", instead="from noetl.gone import"
)
STUMBLING = replace(
    HARMLESS, name="a name", text="    state = state_from_document(document)\n", instead="    state = nobody\n"
)


@pytest.mark.long
@pytest.mark.parametrize("change", [HARMLESS, BROKEN, STUMBLING], ids=lambda one: one.name)
def test_what_no_test_sees_is_not_missed(change: Guard) -> None:
    """Neither a change that changes nothing nor one after which nothing runs says anything about a guard."""
    with whole_copy() as whole, copy_without(change, whole) as copy:
        outcome = run(change.tests, over=copy)
    assert outcome.missed_by(change.tests[0]) == []
    assert bool(outcome.passed) is (change is HARMLESS)
    assert bool(outcome.failed) is (change is STUMBLING)


def _caught(act: object) -> BaseException:
    try:
        exec(str(act), {"pytest": pytest})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("act", "is_missed"),
    [
        ("import noetl.nothing", False),
        ("raise RuntimeError('of the driver')", False),
        ("assert False, 'of the product about itself'", False),
        ("pytest.fail('DID NOT RAISE')", True),
        ("raise ExceptionGroup('', [ValueError()])", False),
    ],
)
def test_only_what_a_test_saw_counts(act: str, is_missed: bool) -> None:
    assert is_about_behaviour(_caught(act)) is is_missed


def test_an_assertion_of_a_test_counts() -> None:
    with pytest.raises(AssertionError) as caught:
        assert GUARDS == ()
    assert is_about_behaviour(caught.value)
    assert is_about_behaviour(ExceptionGroup("", [ValueError(), caught.value]))
