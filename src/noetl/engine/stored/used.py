"""What a command has used: which results were opened for it, and which credentials by name.  It is recorded with the
fact that ends the command, so that every result says what it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.limits import CREDENTIALS_RECORDED_MAX, INPUTS_RECORDED_MAX

Input = tuple[str, str]
REF_ID, DIGEST = "ref_id", "sha256"


class Used:
    """Belongs to one command or frame.  Each input is noted once, in the order of the first look, up to a bound.

    A result that is at hand counts as opened when a template of the command mentions it; one that must be fetched
    counts when somebody looks at it."""

    def __init__(self, *, is_noting: bool = True) -> None:
        """Whoever reads for no command notes nothing."""
        self._is_noting = is_noting
        self._ids: dict[str, list[str]] = {}
        self._inputs: dict[Input, None] = {}
        self._credentials: dict[str, None] = {}

    def named(self, reference: Mapping[str, Any] | None, ref_id: str | None) -> None:
        """Which result a reference is the one of, told before anybody opens it.  Equal results have equal digests: who
        opens one of them has opened all."""
        if self._is_noting and reference is not None and ref_id is not None:
            known = self._ids.setdefault(reference["sha256"], [])
            if ref_id not in known:
                known.append(ref_id)

    def opened(self, sha256: str) -> None:
        if not self._is_noting:
            return
        for ref_id in self._ids.get(sha256, ()):
            self._note((REF_ID, ref_id))
        if sha256 not in self._ids:
            self._note((DIGEST, sha256))

    def credential(self, name: str) -> None:
        if len(self._credentials) < CREDENTIALS_RECORDED_MAX:
            self._credentials[name] = None

    def _note(self, found: Input) -> None:
        if len(self._inputs) < INPUTS_RECORDED_MAX:
            self._inputs[found] = None

    # --- as it is recorded -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """Members of the fact's `meta`; what there is none of is left out."""
        document: dict[str, object] = {}
        if self._inputs:
            document["inputs"] = [{kind: value} for kind, value in self._inputs]
        if self._credentials:
            document["credentials"] = list(self._credentials)
        return document

    def restore(self, document: Mapping[str, Any]) -> None:
        """What was used before a resume point."""
        for item in document.get("inputs", ()):
            for found in item.items():
                self._note(found)
        for name in document.get("credentials", ()):
            self.credential(name)
