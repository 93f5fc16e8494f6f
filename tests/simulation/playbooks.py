"""Random playbooks from a small grammar.  Whatever the order in which things happen, each has one outcome: parallel
branches write different names, and at most one step of a playbook fails without a handler."""

from __future__ import annotations

import json
import random
from typing import Any

_ERROR = "{{ output.status == 'error' }}"


class PlaybookMaker:
    """Builds from the end to the start: every block knows where it leads."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._steps: list[dict[str, Any]] = []
        self._count = 0
        self._may_fail = chance.random() < 0.15

    def text(self) -> str:
        """The document, as JSON: every JSON document is YAML."""
        last = self._chance.choice(("end", "finish"))
        entry = self._sequence(last, depth=2)
        seen = [step["step"] for step in self._steps]
        total = {name: f"{{{{ {name}.value | default(0) }}}}" for name in seen[:6]}
        self._steps.append({"step": last, "tool": self._tool(total)})
        self._steps.append({"step": "start", "tool": self._tool({"seed": "{{ workload.seed }}"}), "next": entry})
        document = {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "simulated", "path": "simulation/random"},
            "workload": {"seed": self._chance.randrange(1000), "text": "nul \0 and 🎈"},
            "workflow": list(reversed(self._steps)),
        }
        return json.dumps(document, ensure_ascii=False)

    # --- pieces ------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _tool(self, values: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        given = {"n": self._chance.randrange(100), "seed": "{{ workload.seed }}", **(values or {})}
        return {"kind": "python", "code": "work", "input": given, **fields}

    def _add(self, name: str, tool: object, following: object) -> str:
        self._steps.append({"step": name, "tool": tool, "next": following})
        return name

    def _sequence(self, following: str, *, depth: int) -> str:
        """One to three blocks in a row; returns the name of the first."""
        for _ in range(self._chance.randint(1, 3)):
            following = self._block(following, depth=depth)
        return following

    def _block(self, following: str, *, depth: int) -> str:
        plain = [self._chain, self._choice, self._handled, self._retried, self._pipeline, self._asked]
        if self._may_fail and self._chance.random() < 0.3:
            self._may_fail = False
            return self._unhandled(following)
        if depth > 0 and self._chance.random() < 0.5:
            return self._chance.choice((self._parallel, self._cycle))(following, depth)
        return self._chance.choice(plain)(following)

    # --- blocks ------------------------------------------------------------------------------------------

    def _chain(self, following: str) -> str:
        big = {"big": 70_000} if self._chance.random() < 0.05 else {}
        return self._add(self._name("chain"), self._tool(big), following)

    def _choice(self, following: str) -> str:
        name = self._name("choice")
        left, right = (self._add(self._name("side"), self._tool({"from": f"{{{{ {name}.value }}}}"}), following)
                       for _ in range(2))  # fmt: skip
        arcs = [
            {"step": left, "when": f"{{{{ {name}.value % 2 == 0 }}}}", "set": {f"ctx.{name}": "even"}},
            {"step": right},
        ]
        return self._add(name, self._tool(), {"arcs": arcs})

    def _asked(self, following: str) -> str:
        """A guard that needs the data: the router asks a worker."""
        name = self._name("asked")
        other = self._add(self._name("side"), self._tool(), following)
        itself = f"steps[ctx.absent | default('{name}')]"
        guard, chosen = f"{{{{ {itself}.items[1] > 500 }}}}", f"{{{{ {itself}.value + 1 }}}}"
        arcs = [{"step": other, "when": guard, "set": {f"ctx.{name}": chosen}}, {"step": following}]
        return self._add(name, self._tool(), {"arcs": arcs})

    def _handled(self, following: str) -> str:
        name = self._name("broken")
        handler = self._add(self._name("handler"), self._tool(), following)
        arcs = [
            {"step": handler, "when": _ERROR, "set": {f"ctx.{name}": "{{ output.error.message }}"}},
            {"step": following},
        ]
        return self._add(name, self._tool({"fails": 99}), {"arcs": arcs})

    def _unhandled(self, following: str) -> str:
        return self._add(self._name("fatal"), self._tool({"fails": 99}), following)

    def _retried(self, following: str) -> str:
        """Fails a few times; waits in the worker or, when it takes longer, by a timer."""
        delay, backoff = self._chance.choice(((0.2, "fixed"), (1.5, "linear"), (3, "fixed"), (2.5, "exponential")))
        fails = self._chance.randint(1, 3)
        gives_up = self._chance.random() < 0.2
        rule = {"do": "retry", "attempts": fails if gives_up else fails + 1, "delay": delay, "backoff": backoff}
        tool = self._tool(
            {"fails": fails, "attempt": "{{ _attempt }}"},
            spec={"policy": {"rules": [{"when": _ERROR, "then": rule}, {"else": {"then": {"do": "continue"}}}]}},
        )
        name = self._name("retried")
        handler = self._add(self._name("handler"), self._tool(), following)
        arcs = [{"step": handler, "when": _ERROR}, {"step": following}]
        return self._add(name, tool, {"arcs": arcs})

    def _pipeline(self, following: str) -> str:
        name = self._name("pipe")
        rule = {"do": "retry", "attempts": 3, "delay": 4, "backoff": "fixed"}
        tool = [
            {"first": {**self._tool(), "set": {f"ctx.{name}": "{{ output.value }}"}}},
            {
                "second": {
                    **self._tool({"before": "{{ first.value }}", "fails": 1, "attempt": "{{ _attempt }}"}),
                    "spec": {"policy": {"rules": [{"when": _ERROR, "then": rule}]}},
                }
            },
            {"third": self._tool({"before": "{{ _prev.value }}", "kept": f"{{{{ ctx.{name} }}}}"})},
        ]
        return self._add(name, tool, following)

    def _parallel(self, following: str, depth: int) -> str:
        """Branches that all lead to one join."""
        join = self._name("join")
        branches = [self._sequence(join, depth=depth - 1) for _ in range(self._chance.randint(2, 3))]
        reads = {branch: f"{{{{ {branch}.value | default(0) }}}}" for branch in branches}
        self._add(join, self._tool(reads), following)
        name = self._name("fork")
        arcs: list[dict[str, Any]] = [{"step": branch} for branch in branches]
        if self._chance.random() < 0.5:
            arcs[0]["when"] = f"{{{{ {name}.value % 3 != 0 }}}}"
        return self._add(name, self._tool(), {"spec": {"mode": "inclusive"}, "arcs": arcs})

    def _cycle(self, following: str, depth: int) -> str:
        """A block that is run again until its counter says stop."""
        name = self._name("cycle")
        counter = f"(ctx.{name} | default(0))"
        body = self._sequence(name, depth=depth - 1) if self._chance.random() < 0.7 else name
        turns = self._chance.randint(1, 3)
        arcs = [
            {
                "step": body,
                "when": f"{{{{ {counter} < {turns} }}}}",
                "set": {f"ctx.{name}": f"{{{{ {counter} + 1 }}}}"},
            },
            {"step": following},
        ]
        return self._add(name, self._tool({"turn": f"{{{{ {counter} }}}}"}), {"arcs": arcs})
