"""What a full run writes: the crash matrix of docs/reliability.md, and one line of sums in the history."""

from __future__ import annotations

import datetime
import json
import math
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fault.suite.stage import Outcome

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reliability.md"
HISTORY = ROOT / "tests" / "fault" / "history.jsonl"
BEGIN, END = "<!-- begin: written by `make fault` -->", "<!-- end -->"


def matrix(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Component, moment, kills, lost, duplicated, recovery p50, p99 and max."""
    rows: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], int] = {}
    lost: dict[tuple[str, str], int] = {}
    twice: dict[tuple[str, str], int] = {}
    for outcome in outcomes:
        for key in {(strike.component, strike.moment) for strike in outcome.strikes}:
            # A finding belongs to the whole fault: whichever of its moments did it.
            lost[key] = lost.get(key, 0) + len(outcome.findings.lost)
            twice[key] = twice.get(key, 0) + len(outcome.findings.duplicated)
        for strike in outcome.strikes:
            key = (strike.component, strike.moment)
            counts[key] = counts.get(key, 0) + 1
            if strike.seconds is not None:
                rows.setdefault(key, []).append(strike.seconds)
    return [
        (*key, str(counts[key]), str(lost[key]), str(twice[key]), *_times(rows.get(key, [])))
        for key in sorted(counts, key=lambda one: (one[0], one[1] != "at random", one[1]))
    ]


def _times(seconds: Iterable[float]) -> tuple[str, str, str]:
    found = sorted(seconds)
    if not found:
        return ("", "", "")
    return tuple(f"{one:.1f}" for one in (quantile(found, 0.5), quantile(found, 0.99), found[-1]))  # type: ignore[return-value]


def quantile(found: Sequence[float], share: float) -> float:
    """Of a sorted list, the smallest value that so many of them do not exceed."""
    return found[max(0, math.ceil(share * len(found)) - 1)]


def sums(outcomes: Sequence[Outcome], *, seed: int, seconds: float) -> dict[str, object]:
    """The line of this run."""
    struck: dict[str, int] = {}
    for outcome in outcomes:
        for strike in outcome.strikes:
            struck[strike.component] = struck.get(strike.component, 0) + 1
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "seed": seed,
        "seconds": round(seconds),
        "faults": dict(sorted(struck.items())),
        "events": sum(outcome.findings.events for outcome in outcomes),
        "executions": sum(outcome.findings.executions for outcome in outcomes),
        "rows": sum(outcome.findings.rows for outcome in outcomes),
        "lost": sum(len(outcome.findings.lost) for outcome in outcomes),
        "duplicated": sum(len(outcome.findings.duplicated) for outcome in outcomes),
        "broken": sum(len(outcome.findings.broken) for outcome in outcomes),
        "missed": [f"{outcome.name}: {one}" for outcome in outcomes for one in outcome.missed],
        "is_good": all(outcome.is_good for outcome in outcomes),
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def told(outcome: Outcome) -> str:
    """One fault in words, for the terminal."""
    state = "ok" if outcome.is_good else "FAILED"
    lines = [f"{outcome.name} {state} in {outcome.seconds:.0f} s: {outcome.says}; {len(outcome.strikes)} faults"]
    lines += [f"    {outcome.findings.text()}"]
    lines += [f"    {name}: {value:g}" for name, value in outcome.figures.items()]
    lines += [f"    MISSED: {one}" for one in outcome.missed]
    return "\n".join(lines)


def write(
    outcomes: Sequence[Outcome], *, seed: int, seconds: float, page: Path = PAGE, history: Path = HISTORY
) -> None:
    """Between the marks of the page, and behind what the history holds."""
    line = sums(outcomes, seed=seed, seconds=seconds)
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, sort_keys=True) + "\n")
    lines = [json.loads(one) for one in history.read_text(encoding="utf-8").splitlines()]
    head, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"{page} has lost the mark {BEGIN}"
    assert end, f"{page} has lost the mark {END}"
    page.write_text(f"{head}{BEGIN}\n{_written(outcomes, line, lines)}\n{END}{tail}", encoding="utf-8")


def _written(outcomes: Sequence[Outcome], line: dict[str, object], history: Sequence[dict[str, object]]) -> str:
    faults = sum(_total(one["faults"]) for one in history)
    lost, twice = (sum(int(str(one[name])) for one in history) for name in ("lost", "duplicated"))
    lines = [
        f"Run of {str(line['at'])[:10]}, commit `{line['commit']}`, seed {line['seed']}, {line['seconds']} s: "
        f"{_total(line['faults'])} faults, {line['executions']} executions, {line['events']:,} events, "
        f"{line['rows']:,} rows in the outer world; lost {line['lost']}, duplicated {line['duplicated']}.",
        "",
        f"All {len(history)} recorded runs together: {faults:,} faults, lost {lost}, duplicated {twice} "
        "(`tests/fault/history.jsonl`).",
        "",
        "| component | moment | faults | lost | duplicated | recovery p50 s | p99 s | max s |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in matrix(outcomes)),
        "",
        "| fault | what | seconds | checker | figures |",
        "|---|---|---|---|---|",
        *(_row(outcome) for outcome in outcomes),
    ]
    return "\n".join(lines)


def _row(outcome: Outcome) -> str:
    figures = "; ".join(f"{name}: {value:g}" for name, value in outcome.figures.items())
    if outcome.missed:
        figures += "; **not reached: " + "; ".join(outcome.missed) + "**"
    word = "clean" if outcome.findings.is_clean else "**not clean**"
    return f"| {outcome.name} | {outcome.says} | {outcome.seconds:.0f} | {word} | {figures} |"


def _total(counts: object) -> int:
    assert isinstance(counts, dict)
    return sum(counts.values())
