"""What a checker has found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Findings:
    """What is wrong, sorted by what it means to a user."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    events: int = 0
    executions: int = 0
    rows: int = 0
    repeated: int = 0
    """Items whose effect the oracle saw more than once: a tool may run twice, and its outcome is recorded once."""
    references: int = 0
    set_aside: set[int] = field(default_factory=set)
    """Executions that could not be folded.  Whoever poisoned them knows how many there must be."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.broken)

    def text(self) -> str:
        """One line when all is well, else everything."""
        figures = (
            f"{self.executions} executions, {self.events} events, {self.references} references, {self.rows} rows, "
            f"{self.repeated} items ran again"
        )
        if self.is_clean:
            return f"clean: {figures}"
        wrong = [
            f"{name}: {one}"
            for name, found in (("lost", self.lost), ("duplicated", self.duplicated), ("broken", self.broken))
            for one in found[:8]
        ]
        return "\n".join([f"NOT clean: {figures}", *wrong])
