"""Which item a dead letter names: by its index, and a row of a cursor by its frame and its place there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.engine.work.frames.dead_letters import dead_letter
from noetl.ports.session import CommandMessage
from tests.support.cursors import Draining, cursor_step
from tests.support.loops import OWNER, Looping, looping, parallel
from tests.support.playbooks import BOOM, graph


def items_of(run: Looping, command_id: str) -> list[dict[str, Any]]:
    """What the letter lists that the seal of a loop writes."""
    body = run.body(command_id)
    message = CommandMessage(77, "acme", "sales", command_id, 1, body)

    async def written() -> Any:
        payloads = run._readable()
        (letter,) = await dead_letter(payloads, message, body["stage"])
        await payloads.store(letter)
        return await payloads.read_json(letter.reference.to_json(), **OWNER)

    return list(asyncio.run(written())["items"])


def test_an_item_of_a_collection_has_its_index() -> None:
    run = looping(list(range(6)), spec=parallel(6, max_rows=2), best_effort=True)
    run.commit("each#1/1")
    run.commit("each#1/2", {3: BOOM})
    run.commit("each#1/3")
    (item,) = items_of(run, "each#1/seal")
    assert (item["index"], item["frame"], item["input"]["row"]) == (3, "each#1/2", 3)
    assert "row" not in item


@pytest.mark.parametrize("process", ["row", "frame"])
def test_a_row_of_a_cursor_has_its_frame_and_its_place_there(process: str) -> None:
    """Where a slot has got to is no index: others take rows beside it."""
    run = Draining(graph(cursor_step("drain", slots=2, frame={"max_rows": 2, "process": process})))
    first, second = run.frames
    run.turn(first, 2)
    run.turn(second, 2)
    third, fourth = run.frames
    run.turn(third, 2, {0: BOOM, 1: BOOM})
    run.turn(fourth, 2)
    for name in list(run.frames):
        run.empty(name)
    found = items_of(run, "drain#1/seal")
    assert [(one["frame"], one["row"]) for one in found] == [(third, 0), (third, 1)][: 2 if process == "row" else 1]
    assert not any("index" in one for one in found)
    assert found[0]["input"]["row"] == 0
