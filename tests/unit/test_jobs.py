"""Jobs of compute engines: what is recorded of them, what a state keeps, how sparse it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.core import kinds, limits
from noetl.core.errors import EnvelopeInvalid, Failure, LeaseLost
from noetl.core.event import Draft
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.jobs.reports import check_recorded, recordable
from noetl.core.execution.state import Command, CommandStatus, Frame, Job
from noetl.core.playbook.compile import compile_playbook
from noetl.core.reference import Result
from noetl.core.secret import HIDDEN, Secret
from noetl.engine.control.facts import LETS_GO, claim_draft, fact_draft, is_told_again
from noetl.engine.control.sessions import demand_of
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.jobs import DRIVER_LOST, CommandJobs, JobCounts, TaskJobs
from noetl.ports.data.compute import JobIntent, JobProgress
from noetl.ports.secrets import Credential
from noetl.ports.session import CommandMessage, Fact, Stop
from tests.support.aio import asynchronous
from tests.support.loops import looping, parallel
from tests.support.playbooks import Simulated, graph, step

NOW = "2026-01-01T00:00:00Z"
WHERE = {"task": "t", "job_group": "g", "application": "local-1", "ui": "http://ui", "started": NOW}
COUNTS = {"job": 1, "jobs": [4], "stages": 3, "stages_done": 1, "tasks": 8, "tasks_done": 2, "tasks_failed": 0}


def held() -> Simulated:
    """A step that somebody holds."""
    run = Simulated(graph(step("start", "end"), step("end")))
    take(run)
    return run


def take(run: Simulated) -> None:
    command = run.state.commands["start#1"]
    run.append(claim_draft(command, command.attempt + 1, 9))


def fact(event_type: str, *, attempt: int = 1, command: str = "start#1", **meta: Any) -> Fact:
    return Fact(77, command, attempt, event_type, meta=meta)


def intended(number: int = 1, **changes: Any) -> Fact:
    return fact(kinds.JOB_INTENDED, n=number, **{**WHERE, **changes})


def progressed(number: int = 1, **changes: Any) -> Fact:
    return fact(kinds.JOB_PROGRESSED, n=number, **{**COUNTS, **changes})


def say(run: Simulated, *facts: Fact) -> None:
    for one in facts:
        command = run.state.commands[one.command_id]
        assert not is_told_again(command, one)
        run.append(fact_draft(command, one, NOW))


def job_of(run: Simulated, command: str = "start#1") -> Job:
    job = run.state.commands[command].job
    assert job is not None
    return job


# --- what is recorded --------------------------------------------------------------------------------------


def test_an_intent_and_a_progress_are_events_about_the_command_and_let_go_of_nothing() -> None:
    run = held()
    command = run.state.commands["start#1"]
    draft = fact_draft(command, intended(conf={"spark.a": "1"}), NOW)
    assert (draft.event_type, draft.transition_key) == (kinds.JOB_INTENDED, "job.intended/start#1/1/1")
    assert (draft.command_id, draft.stage_id, draft.frame_id) == ("start#1", None, None)
    assert draft.meta == {"step": "start", "attempt": 1, "n": 1, **WHERE, "conf": {"spark.a": "1"}}
    say(run, intended())
    draft = fact_draft(run.state.commands["start#1"], progressed(stage="count"), NOW)
    assert draft.transition_key == "job.progressed/start#1/1/1"
    assert draft.meta == {"step": "start", "attempt": 1, "n": 1, **COUNTS, "stage": "count"}
    assert not LETS_GO & {kinds.JOB_INTENDED, kinds.JOB_PROGRESSED}


def test_a_job_of_a_frame_is_about_the_frame_and_its_row() -> None:
    run = looping([1, 2], spec=parallel(2, max_rows=2))
    run.take("each#1/1")
    one = fact(kinds.JOB_INTENDED, command="each#1/1", n=1, row=1, **WHERE)
    draft = fact_draft(run.state.commands["each#1/1"], one, NOW)
    assert (draft.command_id, draft.stage_id, draft.frame_id) == ("each#1/1", "each#1", "each#1/1")
    assert draft.meta["row"] == 1
    say(run, one)
    assert job_of(run, "each#1/1").where["row"] == 1
    run.take("each#1/1")
    assert run.state.commands["each#1/1"].job is None, "whoever takes the frame over begins anew"


@pytest.mark.parametrize(
    "wrong",
    [
        intended(0),
        intended("1"),  # type: ignore[arg-type]
        intended(2**40),
        intended(job_group=7),
        intended(ui="x" * (limits.JOB_TEXT_CHARS_MAX + 1)),
        intended(row=-1),
        intended(row=True),
        intended(conf={"a": 1}),
        intended(conf=["a"]),
        intended(task=None),
        intended(task=""),
        intended(ui="\x1b[2J\x1b]0;title\x07"),
        intended(application="a\nb"),
        intended(row=10**4000),
        progressed(jobs=[10**4000]),
        progressed(tasks=10**4000),
        progressed(stage="\u202efdp.exe"),
        progressed()._replace(payload_ref={"sha256": "0"}),
        intended(conf={"a": "x" * limits.JOB_CONF_BYTES_MAX}),
        progressed(0),
        progressed(job=2),
        progressed(job=None),
        progressed(jobs="1"),
        progressed(jobs=[-1]),
        progressed(tasks=-1),
        progressed(tasks=1.5),
        progressed(stages_done=True),
        progressed(stage=["x"]),
    ],
)
def test_what_is_no_word_about_a_job_is_refused(wrong: Fact) -> None:
    run = held()
    if wrong.event_type == kinds.JOB_PROGRESSED:
        say(run, intended())
    with pytest.raises(EnvelopeInvalid):
        fact_draft(run.state.commands["start#1"], wrong, NOW)


def test_progress_without_an_intent_is_refused() -> None:
    with pytest.raises(EnvelopeInvalid, match=r"job\.intended first"):
        fact_draft(held().state.commands["start#1"], progressed(), NOW)


def test_only_the_last_numbers_of_many_jobs_are_recorded() -> None:
    run = held()
    many = list(range(limits.JOB_IDS_MAX + 5))
    say(run, intended(), progressed(jobs=many))
    assert run.events[-1].meta["jobs"] == many[5:]


def test_a_word_that_is_told_again_is_known_and_a_number_may_be_left_out() -> None:
    run = held()
    say(run, intended(), progressed(), progressed(2))
    command = run.state.commands["start#1"]
    assert is_told_again(command, intended())
    assert is_told_again(command, progressed(2))
    assert not is_told_again(command, intended(2))
    assert not is_told_again(command, progressed(3))
    say(run, intended(4), progressed(7, job=4))
    assert (job_of(run).number, job_of(run).reports) == (4, 7)


# --- what a state keeps ------------------------------------------------------------------------------------


def test_a_held_command_knows_its_last_job_and_how_far_that_is() -> None:
    run = held()
    say(run, intended(event_log=None, conf={"spark.a": "1"}))
    assert job_of(run).where == WHERE, "its settings are in the event only"
    assert job_of(run).since == run.events[-1].event_time
    assert job_of(run).progress is None
    say(run, progressed(), progressed(2, tasks_done=5, stage="count"))
    assert job_of(run).progress == {name: value for name, value in COUNTS.items() if name != "job"} | {
        "tasks_done": 5,
        "stage": "count",
    }
    say(run, intended(2, job_group="h"))
    assert (job_of(run).where["job_group"], job_of(run).progress) == ("h", None)
    say(run, progressed(3, job=1, tasks_done=8))
    assert job_of(run).progress is None, "that is not the one that is shown"
    say(run, progressed(4, job=2))
    assert job_of(run).progress is not None
    assert fold_all(run.events) == run.state


def test_what_is_known_of_a_job_is_gone_with_the_end_and_with_the_next_claim() -> None:
    run = held()
    say(run, intended(), progressed())
    take(run)
    assert run.state.commands["start#1"].job is None
    stale = run.append(run_again(run.events[-2], kinds.job_key(kinds.JOB_PROGRESSED, "start#1", 1, 2)))
    assert stale.meta["attempt"] == 1
    assert run.state.commands["start#1"].job is None, "the word of an attempt that is over"
    say(run, fact(kinds.JOB_INTENDED, attempt=2, n=1, **WHERE))
    assert job_of(run).number == 1
    run.complete("start#1", 1)
    assert "start#1" not in run.state.commands
    assert run.state.step_results["start"].jobs == ()


def run_again(event: Any, key: str) -> Draft:
    """What a stale attempt would have said, had nobody refused it."""
    return Draft(event.event_type, key, meta=event.meta, command_id=event.command_id)


def test_what_the_jobs_of_a_step_cost_stays_with_its_result_and_no_template_sees_it() -> None:
    run = held()
    jobs = [{"task": "t", "rows_read": 5}]
    result = Result(status="ok", context={}).to_json()
    one = Fact(77, "start#1", 1, kinds.COMMAND_COMPLETED, result=result, meta={"duration_ms": 1, "jobs": jobs})
    run.append(fact_draft(run.state.commands["start#1"], one, NOW))
    assert list(run.state.step_results["start"].jobs) == jobs
    assert "jobs" not in run.state.step_results["start"].to_json()
    assert fold_all(run.events) == run.state


# --- what is said about finished jobs ----------------------------------------------------------------------


def test_the_last_jobs_are_recorded_as_far_as_there_is_room() -> None:
    jobs = [{"task": "t", "try": number} for number in range(50)]
    assert recordable(jobs) == jobs[-limits.JOBS_RECORDED_MAX :]
    large = [{"task": "t", "try": number, "note": "x" * 3_000} for number in range(20)]
    kept = recordable(large)
    assert kept == large[-len(kept) :]
    assert 3 < len(kept) < 20
    check_recorded(kept)
    (cut,) = recordable([{"task": "t", "rows_read": 5, "note": "x" * 5_000}])
    assert cut == {"task": "t", "rows_read": 5, "is_cut": True}
    assert recordable([]) == []
    odd = [{"task": "t", "rows_read": "abc", "wall_ms": True, "expect": ["x"], "more": [1]}]
    assert recordable(odd) == [{"task": "t", "more": [1]}], "what would be refused does not take the rest with it"


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": 1},
        "text",
        [1],
        [{}] * (limits.JOBS_RECORDED_MAX + 1),
        [{"a": "x" * limits.JOBS_RECORDED_BYTES_MAX}],
        [{"rows_read": "abc"}],
        [{"wall_ms": 10**4000}],
        [{"tasks": -1}],
        [{"task": 1}],
        [{"expect": "x"}],
        [{"expect": ["x"]}],
        [{"expect": [{"name": "a", "broken": "b"}]}],
        [{"expect": [{"name": 7}]}],
    ],
)
def test_more_than_that_is_refused(wrong: object) -> None:
    one = Fact(77, "start#1", 1, kinds.COMMAND_COMPLETED, meta={"jobs": wrong})
    with pytest.raises(EnvelopeInvalid, match="job"):
        fact_draft(held().state.commands["start#1"], one, NOW)


# --- in the worker -----------------------------------------------------------------------------------------


class Told:
    """The worker's end of a session that remembers what was reported."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.facts: list[Fact] = []
        self.refusal = refusal

    async def report(self, fact: Fact) -> None:
        self.facts.append(fact)
        if self.refusal is not None:
            raise self.refusal

    async def next_command(self) -> CommandMessage:
        raise NotImplementedError

    async def confirmed(self, message: CommandMessage) -> None:
        raise NotImplementedError

    async def next_stop(self) -> Stop:
        raise NotImplementedError


class Telling:
    def __init__(self, refusal: Exception | None = None) -> None:
        self.session, self.clock, self.redactor, self.counts = Told(refusal), VirtualClock(), Redactor(), JobCounts()
        contents: Contents = {}
        message = CommandMessage(77, "acme", "sales", "start#1", 3, {})
        self.jobs = CommandJobs(
            self.session,
            Payloads(small=MemoryPayloads(contents), large=MemoryPayloads(contents)),
            message,
            clock=self.clock,
            redactor=self.redactor,
            counts=self.counts,
        )

    def task(self, row: int | None = None) -> TaskJobs:
        return self.jobs.of("t", row=row)


INTENT = JobIntent(job_group="g", application_id="local-1", ui=None, event_log=None, conf={"spark.a": "1"})


@asynchronous
async def test_an_intent_is_told_at_once_and_everything_is_numbered() -> None:
    telling = Telling()
    first, second = telling.task(), telling.task(row=4)
    await first.intended(INTENT)
    await second.intended(INTENT)
    one, other = telling.session.facts
    assert (one.command_id, one.attempt, one.event_type) == ("start#1", 3, kinds.JOB_INTENDED)
    place = {"task": "t", "job_group": "g", "application": "local-1"}
    assert one.meta == {**place, "started": telling.clock.now(), "conf": {"spark.a": "1"}, "n": 1}
    assert (other.meta["n"], other.meta["row"]) == (2, 4)
    telling.clock.advance(1)
    await second.progressed(JobProgress(jobs=(1,), stages=2, tasks=4, tasks_done=1, stage="s"))
    told = telling.session.facts[-1].meta
    assert (told["n"], told["job"], told["row"], told["tasks_done"]) == (1, 2, 4, 1)
    assert telling.counts.started == 2


@asynchronous
async def test_progress_is_sparse_and_says_only_what_is_new() -> None:
    telling = Telling()
    task = telling.task()
    await task.progressed(JobProgress(tasks_done=1))
    assert telling.session.facts == [], "nothing has begun"
    await task.intended(INTENT)
    moments = []
    for tenth in range(601):
        before = len(telling.session.facts)
        await task.progressed(JobProgress(tasks_done=tenth))
        if len(telling.session.facts) > before:
            moments.append(tenth / 10)
        telling.clock.advance(0.1)
    assert moments == pytest.approx([1, 2, 4, 8, 18, 28, 38, 48, 58], abs=0.11)
    before = len(telling.session.facts)
    for _ in range(10):
        telling.clock.advance(10)
        await task.progressed(JobProgress(tasks_done=900))
    assert len(telling.session.facts) == before + 1


@asynchronous
async def test_settings_are_told_without_secrets_and_by_reference_when_they_are_large() -> None:
    telling = Telling()
    telling.redactor.learn(Credential(name="c", type="generic", data=Secret({"token": "tooth-fairy"})))
    conf = {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.jars": "x?key=tooth-fairy"}
    await telling.task().intended(replace(INTENT, conf=conf, ui="http://ui/tooth-fairy"))
    (one,) = telling.session.facts
    assert one.meta["conf"] == {"spark.hadoop.fs.s3a.secret.key": HIDDEN, "spark.jars": f"x?key={HIDDEN}"}
    assert "tooth-fairy" not in str(one)
    large = {f"spark.number.{number}": "x" * 50 for number in range(200)}
    await telling.task().intended(replace(INTENT, conf={**large, "spark.x.password": "hunter2"}))
    told = telling.session.facts[-1]
    assert "conf" not in told.meta
    (payload,) = told.payloads
    assert told.payload_ref == payload.reference.to_json()
    assert b"spark.number.7" in payload.content
    assert b"hunter2" not in payload.content
    await telling.task().intended(replace(INTENT, ui="x" * 5_000, conf={}))
    last = telling.session.facts[-1].meta
    assert len(str(last["ui"])) == limits.JOB_TEXT_CHARS_MAX
    assert "conf" not in last


@asynchronous
async def test_a_lost_lease_ends_the_task_and_a_refused_progress_does_not() -> None:
    lost = Telling(LeaseLost("another has it"))
    with pytest.raises(LeaseLost):
        await lost.task().intended(INTENT)
    assert lost.counts.started == 0
    telling = Telling()
    task = telling.task()
    await task.intended(INTENT)
    telling.clock.advance(1)
    telling.session.refusal = EnvelopeInvalid("no")
    await task.progressed(JobProgress(tasks_done=1))
    telling.clock.advance(1)
    telling.session.refusal = LeaseLost("another has it")
    with pytest.raises(LeaseLost):
        await task.progressed(JobProgress(tasks_done=2))
    assert [one.meta["n"] for one in telling.session.facts] == [1, 1, 2]


@asynchronous
async def test_failed_jobs_and_lost_drivers_are_counted() -> None:
    telling = Telling()
    task = telling.task()
    task.ended(Failure(kind="config", message="it never began"))
    await task.intended(INTENT)
    task.ended(None)
    task.ended(Failure(kind="python", message="no"))
    task.ended(Failure(kind="connection", code=DRIVER_LOST, message="gone"))
    samples = {name: value for name, _, value in telling.counts.samples()}
    assert samples == {
        "noetl_jobs_started_total": 1,
        "noetl_jobs_failed_total": 2,
        "noetl_jobs_lost_total": 1,
    }


# --- pools -------------------------------------------------------------------------------------------------


def test_a_step_with_a_task_of_a_particular_kind_goes_to_the_pool_of_that_kind() -> None:
    text = graph(
        step("start", "each"),
        step("each", loop={"in": [1, 2], "iterator": "item"}, tool=[{"a": {"kind": "noop"}}, {"b": SPARK}]),
    )
    playbook = compile_playbook(text, file="test.yaml", kinds=frozenset(("noop", "spark")))
    assert {name: one.pool for name, one in playbook.steps.items()} == {"start": "default", "each": "spark"}
    plain = Command("start#1", "start", 1, "step", CommandStatus.ISSUED)
    assert demand_of(plain, playbook) == ("default", {"noop"})
    whole = plain._replace(step="each")
    assert demand_of(whole, playbook) == ("spark", {"noop", "spark"})
    frame = whole._replace(kind="frame", frame=Frame(1, 0, 2, 1))
    assert demand_of(frame, playbook) == ("spark", {"noop", "spark", "frame"})
    for kind in ("evaluate", "collect", "seal"):
        assert demand_of(whole._replace(kind=kind), playbook) == ("default", {kind}), "cheap, and for anybody"


SPARK = {"kind": "spark", "sql": "SELECT 1 AS n"}
