"""The fold and its record: which code makes which state of the recorded ledgers.

`python -m tests.golden.fold` writes the record anew, after `CODE_VERSION` was raised."""

from __future__ import annotations

import ast
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from noetl.core.event import Event
from noetl.core.execution.evolve import fold_all
from noetl.core.snapshot.snapshot import state_checksum
from noetl.core.snapshot.version import CODE_VERSION

FOLDER = Path(__file__).parent
LEDGERS = sorted((FOLDER / "ledgers").glob("*.jsonl"))
RECORD = FOLDER / "fold.json"
FIRST = ("noetl.core.execution.evolve", "noetl.core.snapshot.fields", "noetl.core.upcasting.registry")
WITHIN = ("noetl.core.execution.", "noetl.core.snapshot.fields", "noetl.core.upcasting.")


def ledger(path: Path) -> list[Event]:
    return [Event(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def checksums() -> dict[str, str]:
    """The state that each recorded ledger folds to."""
    found = {}
    for path in LEDGERS:
        state = fold_all(ledger(path))
        assert state is not None
        found[path.stem] = state_checksum(state)
    return found


def modules() -> dict[str, ast.Module]:
    """Everything that the fold is made of: what `evolve` imports of its own package, and so on."""
    found: dict[str, ast.Module] = {}
    waiting = list(FIRST)
    while waiting:
        name = waiting.pop()
        if name not in found and name.startswith(WITHIN):
            tree = _tree(name)
            if tree is not None:
                found[name] = tree
                waiting.extend(_imported(tree))
    return dict(sorted(found.items()))


def source_digest() -> str:
    """Of the code without its comments and docstrings: these change nothing."""
    parts = [f"{name}\n{ast.dump(_bare(tree))}" for name, tree in modules().items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def record() -> dict[str, Any]:
    return {"code_version": CODE_VERSION, "source": source_digest(), "checksums": checksums()}


def _tree(name: str) -> ast.Module | None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return ast.parse(Path(spec.origin).read_text("utf-8"))


def _imported(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in found if name.startswith(WITHIN) and _is_module(name)]


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _bare(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record(), indent=2) + "\n")
