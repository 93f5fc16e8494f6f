"""The worker protocol on the worker's side: facts become bytes, lines become commands."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from noetl.core.codec import canonical_bytes
from noetl.core.errors import HostUnavailable
from noetl.core.reference import STORE_SMALL
from noetl.ports.session import CommandMessage, Fact, Stop


def fact_bytes(fact: Fact, fact_id: str) -> bytes:
    """A fact with the payloads that travel with it.  Raises EnvelopeInvalid for what the ledger would refuse too."""
    document: dict[str, object] = {
        "fact_id": fact_id,
        "execution_id": str(fact.execution_id),
        "command_id": fact.command_id,
        "attempt": fact.attempt,
        "event_type": fact.event_type,
        "meta": fact.meta,
    }
    if fact.result is not None:
        document["result"] = fact.result
    if fact.writes is not None:
        document["writes"] = fact.writes
    if fact.payload_ref is not None:
        document["payload_ref"] = fact.payload_ref
    # Large ones were put before the fact that names them.
    small = [payload for payload in fact.payloads if payload.reference.store == STORE_SMALL]
    if small:
        document["payloads"] = [
            {
                "media_type": payload.reference.media_type,
                "content": base64.b64encode(payload.content).decode("ascii"),
            }
            for payload in small
        ]
    return canonical_bytes(document)


def batch_bytes(session_id: str, facts: list[bytes]) -> bytes:
    return b'{"session_id":"%s","facts":[%s]}' % (session_id.encode("ascii"), b",".join(facts))


def word_of(line: bytes) -> CommandMessage | Stop | str | None:
    """One line of the stream: a command, a stop, the reason of the end, or nothing."""
    try:
        document: dict[str, Any] = msgspec.json.decode(line)
        if "command" in document:
            return command_of(document["command"])
        if "stop" in document:
            stop = document["stop"]
            return Stop(int(stop["execution_id"]), stop["command_id"], stop["attempt"], stop["drain"])
        if "end" in document:
            return str(document["end"]["code"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise HostUnavailable(f"a line of the command stream cannot be read: {error!r}") from error
    return None


def command_of(document: dict[str, Any]) -> CommandMessage:
    return CommandMessage(
        execution_id=int(document["execution_id"]),
        tenant_id=document["tenant_id"],
        organization_id=document["organization_id"],
        command_id=document["command_id"],
        attempt=document["attempt"],
        body=document["body"],
    )


def answers_of(content: bytes, count: int) -> list[dict[str, Any]]:
    """The answers to the facts of a batch, in their order."""
    try:
        answers = msgspec.json.decode(content)["answers"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise HostUnavailable(f"the answer to a batch of facts cannot be read: {error!r}") from error
    if len(answers) != count:
        raise HostUnavailable(f"{len(answers)} answers to {count} facts")
    return list(answers)
