"""Which steps can have run before which, in any run at all."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.core.playbook.compiling.graph import targets_of
from noetl.core.playbook.model import Playbook

PASSES_MAX = 10
"""Playbooks need two or three; each pass looks at every arc."""


class Order:
    """Steps of parallel branches may run in any order, so little can be excluded: what nothing leads to never runs,
    and what only a step itself leads to runs after it, unless there is a way back."""

    def __init__(self, playbook: Playbook, reaches: Sequence[int]) -> None:
        self._number_of = {step.name: number for number, step in enumerate(playbook.steps)}
        self._reaches = reaches
        # `end` and the final step also begin when nothing else runs any more.
        first = (playbook.entry, playbook.final_step, "end")
        numbers = [self._number_of[name] for name in first if name in self._number_of]
        self._above = _dominators(targets_of(playbook), numbers)

    def is_never_before(self, name: str, reader: str) -> bool:
        """Whether the step `name` can never have run when `reader` begins."""
        other, own = self._number_of[name], self._number_of[reader]
        if other not in self._above or own not in self._above:
            return other not in self._above and own in self._above
        if self._reaches[other] >> own & 1 or self._reaches[own] >> own & 1:
            return False
        return self._is_above(own, other)

    def _is_above(self, own: int, other: int | None) -> bool:
        """Whether every way to `other` leads through `own`."""
        while other is not None:
            if other == own:
                return True
            other = self._above[other]
        return False


def _dominators(targets: Sequence[Sequence[int]], first: Sequence[int]) -> dict[int, int | None]:
    """For each step that can run, the nearest one that every way to it leads through; None when there is none."""
    order = _from_the_end(targets, first)
    place = {node: number for number, node in enumerate(reversed(order))}
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for target in targets[node]:
            before[target].append(node)
    above: dict[int, int | None] = dict.fromkeys(first)
    for _ in range(PASSES_MAX):
        changed = False
        for node in reversed(order):
            if node in first:
                continue
            found = _common([one for one in before[node] if one in above], above, place)
            if node not in above or above[node] != found:
                above[node] = found
                changed = True
        if not changed:
            return above
    # Arcs that are this entangled exclude nothing that would be worth the time.
    return dict.fromkeys(order)


def _common(nodes: Sequence[int], above: dict[int, int | None], place: dict[int, int]) -> int | None:
    """The nearest step that is above all of these, each counted as above itself."""
    found: int | None = nodes[0]
    for node in nodes[1:]:
        other: int | None = node
        while found is not None and other is not None and found != other:
            if place[found] > place[other]:
                found = above[found]
            else:
                other = above[other]
        if found is None or other is None:
            return None
    return found


def _from_the_end(targets: Sequence[Sequence[int]], first: Sequence[int]) -> list[int]:
    """Every step that can run, each behind all that are reached through it for the first time."""
    order: list[int] = []
    seen: set[int] = set()
    for start in first:
        if start in seen:
            continue
        seen.add(start)
        work = [(start, iter(targets[start]))]
        while work:
            node, rest = work[-1]
            target = next((one for one in rest if one not in seen), None)
            if target is None:
                order.append(node)
                work.pop()
            else:
                seen.add(target)
                work.append((target, iter(targets[target])))
    return order
