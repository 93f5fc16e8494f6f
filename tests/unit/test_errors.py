"""One tree of errors: the drawing at the top of the module is the truth about the classes below it."""

from __future__ import annotations

import re

import pytest

from noetl.core import errors
from noetl.core.errors import (
    Failure,
    NoetlError,
    PlaybookInvalid,
    Problem,
    Terminal,
    ToolFailed,
    Transient,
)

LEAVES = {
    name: member
    for name, member in vars(errors).items()
    if isinstance(member, type) and issubclass(member, NoetlError) and member not in (NoetlError, Terminal, Transient)
}
DRAWN = re.findall(r"^(?:│   )?[├└]── (\w+)\s+(?:\((\w+)\))?", errors.__doc__ or "", re.MULTILINE)


def test_every_error_is_drawn_once() -> None:
    assert sorted(name for name, _ in DRAWN) == sorted(LEAVES)


@pytest.mark.parametrize(("name", "mixin"), DRAWN)
def test_an_error_says_whether_trying_again_helps(name: str, mixin: str) -> None:
    error = LEAVES[name]
    assert issubclass(error, Terminal) is (mixin == "Terminal")
    assert issubclass(error, Transient) is (mixin == "Transient")


def test_codes_are_stable_and_tell_errors_apart() -> None:
    codes = [error.code for error in LEAVES.values()]
    assert len(codes) == len(set(codes))
    for name, error in LEAVES.items():
        assert error.code == re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("x", "wrong"), "wrong"),
        (Problem("x", "wrong", "a.yaml"), "a.yaml: wrong"),
        (Problem("x", "wrong", "a.yaml", 3, 7), "a.yaml:3:7: wrong"),
    ],
)
def test_a_problem_says_where(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_all_problems_of_a_playbook_are_told_at_once() -> None:
    error = PlaybookInvalid([Problem("a", "one"), Problem("b", "two", "f", 1, 2)])
    assert str(error) == "one\nf:1:2: two"


def test_a_failed_tool_carries_its_failure_and_what_it_still_returned() -> None:
    failure = Failure(kind="timeout", message="too slow", retryable=True)
    error = ToolFailed(failure, {"rows": 1})
    assert (error.failure, error.data, str(error)) == (failure, {"rows": 1}, "too slow")
