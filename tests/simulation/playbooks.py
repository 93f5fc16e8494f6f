"""Random playbooks from a small grammar.  Whatever the order in which things happen, each has one outcome: parallel
branches write different names, and at most one step of a playbook fails without a handler."""

from __future__ import annotations

import json
import random
from typing import Any

_ERROR = "{{ output.status == 'error' }}"
# Collections that every execution is given: one too large for an event, one too large for a single payload.
PAYLOAD: dict[str, Any] = {
    "rows": [{"id": n, "name": f"row {n} " + "x" * 80} for n in range(14)],
    "wide": [{"id": n, "text": f"{n:04}" * 1_000} for n in range(20)],
}


class PlaybookMaker:
    """Builds from the end to the start: every block knows where it leads."""

    def __init__(self, chance: random.Random, *, loops: float | None = None) -> None:
        self._chance = chance
        # How deep blocks may be inside of others: most playbooks are small, so that there can be many.
        self._depth = chance.choice((0, 1, 1, 2))
        # How many of the blocks are loops: in most playbooks few, in some nearly all.
        self._loops = chance.choice((0.0, 0.1, 0.1, 0.5)) if loops is None else loops
        self._steps: list[dict[str, Any]] = []
        self._count = 0
        self._may_fail = chance.random() < 0.15

    def text(self) -> str:
        """The document, as JSON: every JSON document is YAML."""
        last = self._chance.choice(("end", "finish"))
        entry = self._sequence(last, depth=self._depth)
        seen = [step["step"] for step in self._steps]
        total = {name: f"{{{{ {name}.value | default(0) }}}}" for name in seen[:6]}
        self._steps.append({"step": last, "tool": self._tool(total)})
        self._steps.append({"step": "start", "tool": self._tool({"seed": "{{ workload.seed }}"}), "next": entry})
        document = {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "simulated", "path": "simulation/random"},
            "workload": {
                "seed": self._chance.randrange(1000),
                "text": "nul \0 and 🎈",
            },
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

    def _add(self, name: str, tool: object, following: object, **keys: Any) -> str:
        self._steps.append({"step": name, "tool": tool, "next": following, **keys})
        return name

    def _sequence(self, following: str, *, depth: int) -> str:
        """One to three blocks in a row; returns the name of the first."""
        for _ in range(self._chance.randint(1, 3)):
            following = self._block(following, depth=depth)
        return following

    def _block(self, following: str, *, depth: int) -> str:
        plain = [self._chain, self._choice, self._handled, self._retried, self._pipeline, self._asked]
        plain += [self._admitted, self._guarded]
        if self._may_fail and self._chance.random() < 0.3:
            self._may_fail = False
            return self._chance.choice((self._unhandled, self._fatal_loop))(following)
        if depth > 0 and self._chance.random() < 0.5:
            return self._chance.choice((self._parallel, self._cycle))(following, depth)
        if self._chance.random() < self._loops:
            plain = [self._parallel_loop, self._sequential_loop, self._failing_loop]
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

    def _condition(self, requester: str) -> object:
        """About the step that requests the one which is judged: by the router, or by a worker."""
        modulus = self._chance.randint(1, 3)
        return self._chance.choice(
            (
                f"{{{{ {requester}.value % {modulus} == 0 }}}}",
                f"{{{{ result.value % {modulus} == 0 and event.name == 'step.done' }}}}",
                f"{{{{ output.data.items[1] % {modulus} == 0 }}}}",
                f"{{{{ steps[ctx.absent | default('{requester}')].value % {modulus} == 0 }}}}",
                self._chance.random() < 0.5,
            )
        )

    def _admitted(self, following: str) -> str:
        """A side branch that may not be admitted; where it would lead nobody waits for it then."""
        name, side = self._name("gate"), self._name("judged")
        rules = [
            {"when": "{{ missing > 1 }}", "then": {"allow": False}},
            {"when": self._condition(name), "then": {"allow": self._chance.random() < 0.5}},
            {"else": {"then": {"allow": self._chance.random() < 0.5}}},
        ]
        admit = {"policy": {"admit": {"rules": rules[self._chance.randint(0, 2) :]}}}
        if self._chance.random() < self._loops:
            loop = {"in": self._collection(), "iterator": "item", "spec": {"frame": self._frame()}}
            self._looped(side, loop, self._row_tool(), following, spec=admit)
        else:
            self._add(side, self._tool({"from": f"{{{{ {name}.value }}}}"}), following, spec=admit)
        arcs = [{"step": side}, {"step": following}]
        return self._add(name, self._tool(), {"spec": {"mode": "inclusive"}, "arcs": arcs})

    def _guarded(self, following: str) -> str:
        """A step with the deprecated guard: skipped, it leads on through its first matching arc."""
        name, other, before = self._name("guarded"), self._name("side"), self._name("chain")
        self._add(other, self._tool({"own": f"{{{{ {name}.value | default('none') }}}}"}), following)
        itself = f"steps[ctx.absent | default('{before}')]"
        skipped = self._chance.choice(
            (
                "{{ output.status == 'ok' and not output.data }}",
                f"{{{{ event.name == 'call.done' and not output.data and {itself}.value >= 0 }}}}",
            )
        )
        arcs = [{"step": other, "when": skipped, "set": {f"ctx.{name}": "skipped"}}, {"step": following}]
        self._add(name, self._tool(), {"arcs": arcs}, when=self._condition(before))
        return self._add(before, self._tool(), name)

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

    # --- loops -------------------------------------------------------------------------------------------

    def _collection(self) -> object:
        """A few rows: inline, by an atom, or by a worker that must open a payload."""
        if self._chance.random() < 0.03:
            return "{{ workload.wide }}"
        return self._chance.choice(
            (
                list(range(self._chance.randint(0, 9))),
                [{"id": "{{ workload.seed }}"}, "two", None, [3]],
                "{{ start.items }}",
                "{{ workload.rows }}",
                "{{ steps[ctx.absent | default('start')].items + [4, 5, 6, 7] }}",
                '[1, {"id": 2}, "3"]',
                {"id": 1},
                "text",
            )
        )

    def _frame(self) -> dict[str, Any]:
        return self._chance.choice(
            ({}, {}, {"max_rows": 7}, {"max_rows": 30}, {"max_rows": 9, "retry_mode": "whole_frame"})
        )

    def _row_tool(self, values: dict[str, Any] | None = None, **fields: Any) -> Any:
        """What runs for every row: one tool or a list of them, with everything an iteration may read."""
        given = {"item": "{{ iter.item }}", "again": "{{ item }}", "index": "{{ loop.index }}", "of": "{{ _total }}"}
        tool = self._tool({**given, **(values or {})}, **fields)
        if self._chance.random() < 0.6:
            return tool
        second = self._tool({"index": "{{ _index }}", "before": "{{ first.value }}", "mine": "{{ iter.mine }}"})
        return [{"first": {**tool, "set": {"iter.mine": "{{ output.value }}"}}}, {"second": second}]

    def _looped(self, name: str, loop: dict[str, Any], tool: object, following: object, **keys: Any) -> str:
        self._steps.append({"step": name, "loop": loop, "tool": tool, "next": following, **keys})
        return name

    def _reader(self, name: str, following: str) -> str:
        """A step that opens the result of a loop."""
        reads = {
            "third": f"{{{{ {name}.results[2] }}}}",
            "stats": f"{{{{ {name}.stats }}}}",
            "all": f"{{{{ {name}.data }}}}",
        }
        return self._add(self._name("reader"), self._tool(reads), following)

    def _parallel_loop(self, following: str) -> str:
        """Rows at the same time; some fail and are counted, some fail once and are tried again."""
        name = self._name("loop")
        in_flight = self._chance.choice(
            (1, 2, 3, 5, 12, "{{ workload.seed % 5 + 1 }}", "{{ steps[ctx.absent | default('start')].value % 4 + 1 }}")
        )
        spec = {"mode": "parallel", "max_in_flight": in_flight, "frame": self._frame()}
        loop = {"in": self._collection(), "iterator": "item", "spec": spec}
        if self._chance.random() < 0.5:
            tool = self._row_tool()
        elif self._chance.random() < 0.5:
            tool = self._row_tool({"fails": "{{ 99 if loop.index % 5 == 3 else 0 }}"})
        else:
            rule = {"do": "retry", "attempts": 3, "delay": 0.3, "backoff": "linear"}
            tool = self._row_tool(
                {"fails": "{{ loop.index % 3 }}", "attempt": "{{ _attempt }}"},
                spec={"policy": {"rules": [{"when": _ERROR, "then": rule}]}},
            )
        after = self._reader(name, following) if self._chance.random() < 0.5 else following
        arcs = [{"step": after, "set": {f"ctx.{name}": f"{{{{ {name}.stats }}}}"}}]
        return self._looped(name, loop, tool, {"arcs": arcs}, spec={"policy": {"failure": {"mode": "best_effort"}}})

    def _sequential_loop(self, following: str) -> str:
        """Every row sees what the rows before it wrote."""
        name = self._name("turns")
        loop = {"in": self._collection(), "iterator": "item", "spec": {"mode": "sequential", "frame": self._frame()}}
        before = f"(ctx.{name} | default([]))"
        # One row writes a name that no later row writes again.
        once = {"do": "continue", "set": {f"ctx.{name}_once": "{{ output.data.value }}"}}
        rules = [{"when": "{{ loop.index == 1 }}", "then": once}]
        tool = self._row_tool({"before": f"{{{{ {before} }}}}"}, spec={"policy": {"rules": rules}})
        first = tool[0]["first"] if isinstance(tool, list) else tool
        written = {f"ctx.{name}": f"{{{{ {before} + [loop.index] }}}}", f"ctx.{name}_last.index": "{{ loop.index }}"}
        first["set"] = {**first.get("set", {}), **written}
        after = self._reader(name, following) if self._chance.random() < 0.3 else following
        return self._looped(name, loop, tool, after)

    def _failing_loop(self, following: str) -> str:
        """One row fails and ends the loop; an arc handles it."""
        name = self._name("torn")
        handler = self._add(self._name("handler"), self._tool(), following)
        arcs = [
            {"step": handler, "when": _ERROR, "set": {f"ctx.{name}": "{{ output.error.message }}"}},
            {"step": following},
        ]
        return self._looped(name, self._torn(), self._torn_tool(), {"arcs": arcs})

    def _fatal_loop(self, following: str) -> str:
        return self._looped(self._name("fatal"), self._torn(), self._torn_tool(), following)

    def _torn(self) -> dict[str, Any]:
        mode = self._chance.choice(("parallel", "sequential"))
        spec: dict[str, Any] = {"mode": mode, "frame": self._frame()}
        if mode == "parallel":
            spec["max_in_flight"] = self._chance.choice((1, 3, 8))
        return {"in": list(range(self._chance.randint(6, 16))), "iterator": "item", "spec": spec}

    def _torn_tool(self) -> Any:
        return self._row_tool({"fails": f"{{{{ 99 if item == {self._chance.choice((1, 5))} else 0 }}}}"})
