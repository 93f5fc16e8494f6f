"""Where the arcs of a playbook can lead."""

from __future__ import annotations

from noetl.core.playbook.document import Findings
from noetl.core.playbook.model import Playbook


def reachability(playbook: Playbook) -> list[int]:
    """For each step the bit set of steps that its arcs can lead to, over any number of arcs."""
    number_of = {step.name: number for number, step in enumerate(playbook.steps)}
    direct = [
        sum({1 << number_of[arc.step] for arc in (step.next.arcs if step.next else ()) if arc.step in number_of})
        for step in playbook.steps
    ]
    reach = []
    for start in direct:
        seen = frontier = start
        while frontier:
            node = frontier.bit_length() - 1
            found = direct[node] & ~seen
            seen |= found
            frontier = frontier & ~(1 << node) | found
        reach.append(seen)
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
