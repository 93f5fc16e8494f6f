"""What once failed does not fail again."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import RUNS, check_seed, regressions


def test_every_line_names_a_run() -> None:
    assert {kind for kind, _ in regressions()} <= set(RUNS)


@pytest.mark.parametrize(("kind", "seed"), list(regressions()))
def test_a_run_that_once_failed(kind: str, seed: int) -> None:
    check_seed(kind, seed)
