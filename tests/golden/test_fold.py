"""Recorded ledgers fold to the recorded states, whole and from any snapshot on; and the fold does not change under the
version that snapshots carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from noetl.core import kinds
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.state import ExecutionState
from noetl.core.kinds import KINDS
from noetl.core.snapshot.snapshot import restore, state_checksum, take
from noetl.core.snapshot.version import CODE_VERSION
from tests.golden.fold import LEDGERS, RECORD, ledger, modules, source_digest

AGAIN = (
    "The fold has changed.  Snapshots of the old one must not be used: raise CODE_VERSION in "
    "noetl/core/snapshot/version.py, then run `python -m tests.golden.fold` and look at what changed in fold.json."
)
RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("path", LEDGERS, ids=lambda path: path.stem)
def test_a_recorded_ledger_folds_to_the_recorded_state(path: Path) -> None:
    state = fold_all(ledger(path))
    assert state is not None
    assert state.is_terminal
    assert state_checksum(state) == RECORDED["checksums"][path.stem], AGAIN


@pytest.mark.parametrize("path", LEDGERS, ids=lambda path: path.stem)
def test_a_fold_from_any_snapshot_on_comes_to_the_same(path: Path) -> None:
    """Through a snapshot after every event, so that each fold begins with a state that was bytes."""
    through: ExecutionState | None = None
    for event in ledger(path):
        through = evolve(through, event)
        restored = restore(take(through, shard_id=event.shard_id, position=event.position))
        assert restored == through
        through = restored
    assert through is not None
    assert state_checksum(through) == RECORDED["checksums"][path.stem]


def test_every_kind_of_event_is_in_some_ledger() -> None:
    seen = {event.event_type for path in LEDGERS for event in ledger(path)}
    assert seen == set(KINDS) - {kinds.CHECKPOINT_COMMITTED}


def test_the_code_of_the_fold_is_that_of_its_version() -> None:
    assert RECORDED["code_version"] == CODE_VERSION, AGAIN
    assert RECORDED["source"] == source_digest(), AGAIN


def test_the_record_knows_all_of_the_fold_and_nothing_of_the_router() -> None:
    assert {"noetl.core.execution.state", "noetl.core.execution.looping.stages", "noetl.core.execution.evolve"} <= set(
        modules()
    )
    assert "noetl.core.execution.decide" not in modules()
