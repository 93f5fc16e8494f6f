"""Where the arcs of a playbook can lead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from noetl.core.playbook.document import Findings
from noetl.core.playbook.model import Playbook


def targets_of(playbook: Playbook) -> list[list[int]]:
    """For each step the numbers of the steps that its own arcs lead to, each once."""
    number_of = {step.name: number for number, step in enumerate(playbook.steps)}
    found = []
    for step in playbook.steps:
        arcs = step.next.arcs if step.next else ()
        found.append(list(dict.fromkeys(number_of[arc.step] for arc in arcs if arc.step in number_of)))
    return found


def knots(targets: Sequence[Sequence[int]]) -> list[list[int]]:
    """The strongly connected parts of a graph, each after all parts that it leads to; without recursion, in time that
    grows with the arcs."""
    search = _Search(targets)
    for start in range(len(targets)):
        search.run(start)
    return search.parts


class _Search:
    """Depth first.  `low` is the earliest node that a node has a way back to, as far as it is known."""

    def __init__(self, targets: Sequence[Sequence[int]]) -> None:
        self.parts: list[list[int]] = []
        self._targets = targets
        self._order: dict[int, int] = {}
        self._low: dict[int, int] = {}
        # Nodes whose part is not complete, and where each of them lies.
        self._waiting: list[int] = []
        self._place: dict[int, int] = {}
        self._path: list[tuple[int, Iterator[int]]] = []

    def run(self, start: int) -> None:
        if start not in self._order:
            self._enter(start)
        while self._path:
            node, rest = self._path[-1]
            new = next((target for target in rest if self._is_new(node, target)), None)
            if new is None:
                self._leave(node)
            else:
                self._enter(new)

    def _is_new(self, node: int, target: int) -> bool:
        if target in self._place:
            self._low[node] = min(self._low[node], self._order[target])
        return target not in self._order

    def _enter(self, node: int) -> None:
        self._order[node] = self._low[node] = len(self._order)
        self._place[node] = len(self._waiting)
        self._waiting.append(node)
        self._path.append((node, iter(self._targets[node])))

    def _leave(self, node: int) -> None:
        self._path.pop()
        if self._path:
            above = self._path[-1][0]
            self._low[above] = min(self._low[above], self._low[node])
        if self._low[node] == self._order[node]:
            place = self._place[node]
            self.parts.append(self._waiting[place:])
            del self._waiting[place:]
            for member in self.parts[-1]:
                del self._place[member]


def reachability(playbook: Playbook) -> list[int]:
    """For each step the bit set of steps that its arcs can lead to, over any number of arcs."""
    targets = targets_of(playbook)
    reach = [0] * len(targets)
    for knot in knots(targets):
        found = 0
        for node in knot:
            for target in targets[node]:
                found |= 1 << target | reach[target]
        for node in knot:
            reach[node] = found
    return reach


def warn_unreachable(playbook: Playbook, reach: list[int], findings: Findings) -> None:
    reached = 0
    for number, step in enumerate(playbook.steps):
        if step.name in (playbook.entry, playbook.final_step, "end"):
            reached |= 1 << number | reach[number]
    for number, step in enumerate(playbook.steps):
        if not reached >> number & 1:
            message = f"step {step.name!r}: no arc leads here, it never runs"
            findings.warn("unreachable_step", message, (*step.place, "step"), step=step.name)
