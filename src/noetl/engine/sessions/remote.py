"""The control plane's end of a session with a worker of another process.  It knows no transport."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from noetl.core.errors import LeaseLost, NoetlError
from noetl.core.limits import FACT_ANSWERS_KEPT_MAX
from noetl.core.locator.locality import NOWHERE, Place
from noetl.engine.sessions.voice import Key, Voice, Word
from noetl.ports.serving.roster import SessionRow
from noetl.ports.session import CommandMessage, Stop

# Requests for frames that can be repeated: each slot of a worker has one under way.
PULLS_KEPT_MAX = 4_096

Outcome = NoetlError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a worker says of itself.  Without `kinds` it can run every kind of task."""

    worker_id: str
    slots: int
    pool: str = "default"
    kinds: frozenset[str] | None = None
    place: Place = NOWHERE


class RemoteSession:
    """A command sink that knows what it holds.  `voice` is what it has yet to hear, `answers` what it was told about
    its facts."""

    def __init__(self, session_id: int, profile: Profile, *, now: float) -> None:
        self.session_id = session_id
        self.slots = profile.slots
        self.profile = profile
        self.seen_at = now
        self.is_draining = False
        # Set when it can be given something, or never will be.
        self.introduced = asyncio.Event()
        self.voice = Voice(self._everything)
        self.answers = Answers()
        self._held: dict[Key, CommandMessage] = {}
        self._stops: dict[Key, Stop] = {}
        # One request for frames at a time: one that is repeated must find what the first one got.
        self.pulling = asyncio.Lock()
        # Which frames a request got; what they are is with what is held.
        self._pulls: OrderedDict[str, list[tuple[int, str, int]]] = OrderedDict()

    # --- the sink --------------------------------------------------------------------------------------------

    def announce(self, message: CommandMessage) -> None:
        """Nothing: what travels over a network is sent once, when its claim is in the ledger."""

    def withdraw(self, message: CommandMessage) -> None:
        """Nothing was shown."""

    def deliver(self, message: CommandMessage) -> None:
        self._held[message.execution_id, message.command_id] = message
        self.voice.say(message)

    def stop(self, stop: Stop) -> None:
        self._stops[stop.execution_id, stop.command_id] = stop
        self.voice.say(stop)

    # --- what it holds ---------------------------------------------------------------------------------------

    @property
    def held(self) -> Collection[CommandMessage]:
        return self._held.values()

    def message(self, execution_id: int, command_id: str, attempt: int) -> CommandMessage:
        """The command that a fact is about.  Raises LeaseLost when this session does not hold that attempt."""
        message = self._held.get((execution_id, command_id))
        if message is None or message.attempt != attempt:
            raise LeaseLost(f"this session does not hold attempt {attempt} of {command_id}")
        return message

    def is_holding(self, execution_id: int, command_id: str, attempt: int) -> bool:
        message = self._held.get((execution_id, command_id))
        return message is not None and message.attempt == attempt

    def let_go(self, execution_id: int, command_id: str, attempt: int) -> None:
        key = (execution_id, command_id)
        message = self._held.get(key)
        if message is not None and message.attempt == attempt:
            del self._held[key]
            self._stops.pop(key, None)
            self.voice.said.discard(key)
            self.voice.swallow([message])

    def hand_back(self) -> list[CommandMessage]:
        """What was never sent, and now never will be.  What is said again to a new listener was."""
        unsent = [message for key, message in self._held.items() if key not in self.voice.said]
        for message in unsent:
            self.let_go(message.execution_id, message.command_id, message.attempt)
        return unsent

    def pulled(self, key: str | None) -> list[CommandMessage] | None:
        """The answer to a request for frames that was made before; what has ended since is left out."""
        found = self._pulls.get(key) if key is not None else None
        if found is None:
            return None
        return [self._held[one[:2]] for one in found if self.is_holding(*one)]

    def pull(self, key: str | None, messages: list[CommandMessage]) -> list[CommandMessage]:
        """Frames that were claimed by request are handed over with the answer and not said again.  That there were none
        is no answer to keep: whoever asks again wants to know whether there are some now."""
        if key is not None and messages:
            self._pulls[key] = [(one.execution_id, one.command_id, one.attempt) for one in messages]
            while len(self._pulls) > PULLS_KEPT_MAX:
                self._pulls.popitem(last=False)
        self.voice.swallow(messages)
        self.voice.said.update((message.execution_id, message.command_id) for message in messages)
        return messages

    def end(self, reason: str) -> None:
        self.introduced.set()
        self.voice.end(reason)

    def _everything(self) -> list[Word]:
        return [*self._held.values(), *self._stops.values()]


class Answers:
    """Answers to facts by the worker's own names for them: a fact that is told twice is answered once."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, asyncio.Future[Outcome]] = OrderedDict()

    def find(self, fact_id: str) -> asyncio.Future[Outcome] | None:
        """The answer, perhaps still to come."""
        return self._answers.get(fact_id)

    def expect(self, fact_id: str) -> asyncio.Future[Outcome]:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._answers[fact_id] = answer
        while len(self._answers) > FACT_ANSWERS_KEPT_MAX:
            self._answers.popitem(last=False)
        return answer

    def forget(self, fact_id: str) -> None:
        self._answers.pop(fact_id, None)


def row_of(session: RemoteSession) -> SessionRow:
    """What other servers may know of a session."""
    profile = session.profile
    return SessionRow(
        session_id=session.session_id,
        worker_id=profile.worker_id,
        pool=profile.pool,
        kinds=profile.kinds,
        slots=profile.slots,
        place=profile.place,
    )
