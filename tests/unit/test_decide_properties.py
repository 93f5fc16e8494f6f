"""Any playbook, with any results in any order, runs to one end; and what was decided once is decided again."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import LedgerCorrupt
from noetl.core.event import Draft, Event
from noetl.core.execution.decide import Decision, decide
from noetl.core.execution.evolve import evolve, fold_all
from noetl.core.execution.state import ExecutionState, Status
from tests.support.playbooks import BOOM, JsonObject, Simulated, compiled, graph, step

FACTS = (kinds.PLAYBOOK_INITIALIZED, kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED)
RUNS_MAX = 3
GUARDS = (
    "{{ output.data.go[%d] }}",
    "{{ (output.data.go[%d] and seen is defined) or output.data.never }}",
    # Only a worker can evaluate a loop.
    "{%% for flag in output.data.go if flag and loop.index0 == %d %%}yes{%% endfor %%}",
)
FAILURE_GUARD = "{{ output.status == 'error' }}"
# Fires behind a step that its guard skipped; a circle of such steps must end.
SKIP_GUARD = "{{ output.status == 'ok' and not output.data and (skips | default(0)) < 12 }}"
# What says whether a step runs: from the context, from the step that requested it, by a worker, by failing.
CONDITIONS = (
    "{{ (seen | default(0)) % 3 != 1 }}",
    "{{ event.step != 's1' }}",
    "{{ result is not defined or result.go[0] or result.go[1] }}",
    "{{ event.name == 'call.done' and not error }}",
    True,
)
FAILING_CONDITION = "{{ missing > 1 }}"


def random_admission(random: Random, *, can_fail: bool) -> JsonObject:
    """Nothing, rules of admission, the deprecated guard, or both."""
    keys: JsonObject = {}
    if random.random() < 0.25:
        rules: list[JsonObject] = [
            {"when": random.choice((*CONDITIONS, FAILING_CONDITION)), "then": {"allow": random.random() < 0.7}}
            for _ in range(random.randint(0, 3))
        ]
        if random.random() < 0.3:
            rules.append({"else": {"then": {"allow": random.random() < 0.5}}})
        keys["spec"] = {"policy": {"admit": {"rules": rules}}}
    if random.random() < 0.25:
        keys["when"] = random.choice(CONDITIONS)
        if can_fail and random.random() < 0.1:
            keys["when"] = FAILING_CONDITION
    return keys


def random_graph(random: Random, *, is_acyclic: bool = False) -> str:
    """Steps with arcs to anywhere; every arc asks the result of its step whether it fires."""
    names = [f"s{number}" for number in range(random.randint(2, 7))]
    if random.random() < 0.4:
        names.append("end")
    steps = []
    for number, name in enumerate(names):
        targets = names[number + 1 :] if is_acyclic else names
        arcs: list[str | JsonObject] = []
        for place in range(random.choice((0, 1, 2, 2, 3, 3)) if targets else 0):
            arc: JsonObject = {"step": random.choice([*targets, "end"]), "when": random.choice(GUARDS) % place}
            if random.random() < 0.2:
                arc["when"] = FAILURE_GUARD
            elif random.random() < 0.2:
                arc |= {"when": SKIP_GUARD, "set": {"skips": "{{ skips | default(0) + 1 }}"}}
            if random.random() < 0.3 and "set" not in arc:
                arc["set"] = {"arcs": "{{ arcs | default(0) + 1 }}"}
            arcs.append(arc)
        mode = random.choice(["exclusive", "inclusive", "inclusive"])
        admission = random_admission(random, can_fail=not is_acyclic) if number > 0 else {}
        steps.append(step(name, *arcs, mode=mode, set={"seen": "{{ seen | default(0) + 1 }}"}, **admission))
    # A final step is a second entry: what it leads to may have run before.
    has_final = random.random() < 0.3 and not is_acyclic
    spec = {"final_step": random.choice(names)} if has_final else {}
    return graph(*steps, executor={"spec": spec})


@cache
def random_run(seed: int, *, is_acyclic: bool = False, failing: float = 0.07) -> Simulated:
    """Drive a random playbook to its end, with random results in a random order.

    A seed is one run for all tests: making it costs more than looking at it."""
    random = Random(seed)
    run = Simulated(random_graph(random, is_acyclic=is_acyclic))

    def result(number: int) -> object:
        if number < RUNS_MAX and random.random() < failing:
            return BOOM
        likely = 0.85 if number < RUNS_MAX else 0.0
        return {"go": [random.random() < likely for _ in range(3)], "never": False}

    return run.run(dict.fromkeys(run.playbook.steps, result), pick=random.choice)


SEEDS = st.integers(0, 99)
FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def turned_down(run: Simulated) -> list[str]:
    """The turns in which a step did not run."""
    events = [event for event in run.of(kinds.STEP_DECIDED) if "reason" in event.meta]
    return [f"{event.meta['step']}#{event.meta['run']}" for event in events]


# --- one end ---------------------------------------------------------------------------------------------


@FEW
@given(SEEDS)
def test_every_execution_ends_once_with_all_its_commands_ended(seed: int) -> None:
    run = random_run(seed)
    terminal = [event for event in run.events if event.transition_key == kinds.EXECUTION_TERMINAL_KEY]
    assert terminal == [run.events[-1]]
    keys = [event.transition_key for event in run.events]
    assert len(keys) == len(set(keys))
    issued = [event.command_id for event in run.of(kinds.COMMAND_ISSUED)]
    ended = [e.command_id for e in (*run.of(kinds.COMMAND_COMPLETED), *run.of(kinds.COMMAND_FAILED))]
    assert Counter(issued) == Counter(ended)
    assert run.state.commands == {}
    assert run.state.issued_steps == {}
    decided = [f"{event.meta['step']}#{event.meta['run']}" for event in run.of(kinds.STEP_DECIDED)]
    assert Counter(decided) == Counter([*run.issued, *turned_down(run)])


@FEW
@given(SEEDS)
def test_the_status_is_failed_exactly_when_a_failure_was_not_handled(seed: int) -> None:
    run = random_run(seed, failing=0.3)
    failures = [event for event in run.of(kinds.STEP_DECIDED) if event.meta["outcome"] == "failed"]
    assert (run.state.status is Status.FAILED) is bool(failures)
    if failures:
        assert run.events[-1].meta["step"] == failures[0].meta["step"]
        later = [e for e in run.of(kinds.COMMAND_ISSUED) if e.stream_version > failures[0].stream_version]
        fresh = [event.meta["step"] for event in later if event.meta["kind"] == "step"]
        assert fresh in ([], [run.playbook.playbook.final_step])
        assert all(event.meta.get("closing") for event in later if event.meta["kind"] == "step")
    else:
        assert run.state.requested_steps == {}


@FEW
@given(SEEDS)
def test_every_completed_step_wrote_exactly_once(seed: int) -> None:
    run = random_run(seed)
    completed = [event for event in run.of(kinds.STEP_DECIDED) if event.meta["outcome"] == "completed"]
    assert run.context.get("seen", 0) == len(completed)


# --- fan-in ----------------------------------------------------------------------------------------------


def expected_to_wait(run: Simulated, state: ExecutionState, name: str) -> bool:
    """Whether another live step can still reach a step."""
    steps = run.playbook.steps
    live = {*state.issued_steps, *state.requested_steps} - {name}
    return any(steps[other].reaches >> steps[name].number & 1 for other in live)


def check_dispatch(run: Simulated, before: ExecutionState, event: Event) -> None:
    """The fan-in rule and the progress rule, for a step whose turn it is: whether it runs or not."""
    name = str(event.meta["step"])
    if name in before.issued_steps:
        # Its turn began with a question about its admission.
        assert before.pending_next_actions[name].phase is not None
        assert event.meta["parents"] == list(before.pending_next_actions[name].parents)
        return
    requested = before.requested_steps.get(name)
    if requested is None:
        # Implicit end or final step: only when all is quiet.
        assert not before.issued_steps
        assert not before.requested_steps or before.failure is not None
        return
    assert event.meta["parents"] == list(dict.fromkeys(requested))
    if expected_to_wait(run, before, name):
        order = list(run.playbook.steps)
        assert not before.issued_steps
        assert name == min(before.requested_steps, key=order.index)


@FEW
@given(SEEDS)
def test_a_step_is_entered_once_for_all_its_requests_and_not_before_they_can_all_be_there(seed: int) -> None:
    run = random_run(seed)
    state = evolve(None, run.events[0])
    for event in run.events[1:]:
        is_issued = event.event_type == kinds.COMMAND_ISSUED
        if (is_issued and event.meta["kind"] == "step") or "phase" in event.meta or "reason" in event.meta:
            check_dispatch(run, state, event)
        state = evolve(state, event)


@FEW
@given(SEEDS)
def test_without_cycles_every_step_runs_at_most_once(seed: int) -> None:
    run = random_run(seed, is_acyclic=True)
    assert set(run.state.runs.values()) == {1}


@FEW
@given(SEEDS)
def test_what_may_run_does_run(seed: int) -> None:
    """After every decision either something is running or the execution has ended."""
    run = random_run(seed)
    state = None
    for event in run.events:
        state = evolve(state, event)
        if event.event_type in FACTS:
            after = decide(state, event, run.playbook).state
            assert after.is_terminal or after.commands


# --- the fold --------------------------------------------------------------------------------------------


@FEW
@given(SEEDS, st.data())
def test_the_fold_is_prefix_stable_and_duplicates_change_nothing(seed: int, data: st.DataObject) -> None:
    run = random_run(seed)
    cut = data.draw(st.integers(0, len(run.events)))
    prefix = fold_all(run.events[:cut])
    assert fold_all(run.events[cut:], prefix) == fold_all(run.events) == run.state
    state = None
    for event in run.events:
        once = evolve(state, event)
        assert evolve(once, event) == once
        assert event is run.events[0] or evolve(once, run.events[0]) == once
        state = once


@FEW
@given(SEEDS, st.data())
def test_a_missing_event_is_never_overlooked(seed: int, data: st.DataObject) -> None:
    run = random_run(seed)
    gap = data.draw(st.integers(0, len(run.events) - 2))
    with pytest.raises(LedgerCorrupt):
        fold_all(run.events[:gap] + run.events[gap + 1 :])


# --- decisions -------------------------------------------------------------------------------------------


def recorded(drafts: tuple[Draft, ...]) -> bytes:
    return canonical_bytes([draft._asdict() for draft in drafts])


def as_drafts(events: list[Event]) -> tuple[Draft, ...]:
    return tuple(
        Draft(
            event_type=event.event_type,
            transition_key=event.transition_key,
            meta=event.meta,
            command_id=event.command_id,
            result=event.result,
            writes=event.writes,
            payload_ref=event.payload_ref,
        )
        for event in events
    )


def following(events: list[Event], place: int) -> list[Event]:
    """The events that a decision about the event at a place made."""
    rest = events[place + 1 :]
    return rest[: next((n for n, event in enumerate(rest) if event.event_type in FACTS), len(rest))]


@FEW
@given(SEEDS)
def test_the_ledger_alone_gives_the_same_decisions_to_the_byte(seed: int) -> None:
    run = random_run(seed)
    recompiled = compiled(run.text)
    state = None
    for place, event in enumerate(run.events):
        state = evolve(state, event)
        if event.event_type not in FACTS:
            continue
        one: Decision = decide(state, event, run.playbook)
        other = decide(state, event, recompiled)
        assert one == other
        assert recorded(one.drafts) == recorded(other.drafts) == recorded(as_drafts(following(run.events, place)))
        # A decision that is already in the state is not made again.
        assert decide(one.state, event, run.playbook).drafts == ()


@FEW
@given(SEEDS)
def test_the_order_of_answers_does_not_matter_to_a_playbook_without_cycles_and_failures(seed: int) -> None:
    random = Random(seed)
    text = random_graph(random, is_acyclic=True)
    flags = [random.random() < 0.7 for _ in range(3)]
    values = {name: {"go": flags, "never": False} for name in Simulated(text).playbook.steps}
    one = Simulated(text).run(values)
    other = Simulated(text).run(values, pick=lambda waiting: waiting[-1])
    assert one.state.runs == other.state.runs
    assert one.context == other.context
    assert one.state.status is other.state.status
