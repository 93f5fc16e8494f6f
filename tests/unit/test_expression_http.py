"""The view rule of http results: what is none of the six keys is looked for in the body (dsl §9.3)."""

from __future__ import annotations

import pytest

from noetl.core.expression import OutputView, compile_template, pack, render, unpack, view_of

BODY = {"paging": {"next": 2}, "items": [1], "status": "fine", "url": "body's own"}
RAW = {"status_code": 200, "headers": {"etag": "x"}, "url": "u", "elapsed": 0.1, "data": BODY, "body": BODY}


def ask(expression: str, names: dict[str, object]) -> object:
    return render(compile_template("{{ " + expression + " }}"), names)


def names_of(raw: object) -> dict[str, object]:
    return {"step": view_of(raw), "output": OutputView(status="ok", data=raw)}


@pytest.mark.parametrize(
    "path",
    [
        "step.paging.next",
        "step.data.paging.next",
        "step.body.paging.next",
        "output.paging.next",
        "output.data.paging.next",
        "output.data.data.paging.next",
        "output.response.paging.next",
    ],
)
def test_every_way_to_the_body_is_open(path: str) -> None:
    assert ask(path, names_of(RAW)) == 2
    assert ask(path, unpack(pack(names_of(RAW)))) == 2


def test_the_six_keys_win_over_the_body() -> None:
    names = names_of(RAW)
    assert ask("step.url", names) == "u"
    assert ask("step.status_code", names) == 200
    assert ask("step.headers.etag", names) == "x"
    assert ask("step.status", names) == "fine"
    assert ask("output.status", names) == "ok"
    assert ask("output.status_code", names) == 200


def test_the_whole_result_has_only_the_six_keys() -> None:
    names = names_of(RAW)
    assert ask("step", names) == RAW
    assert ask("output.data", names) == RAW
    assert ask("step | length", names) == 6
    assert ask("'paging' in step", names) is False


@pytest.mark.parametrize("body", ["text", [1, 2], None, 7])
def test_a_body_that_is_no_mapping_is_not_searched(body: object) -> None:
    names = names_of({**RAW, "data": body, "body": body})
    assert ask("step.paging is defined", names) is False
    assert ask("step.data", names) == body
    assert ask("step.status", names) == "ok"


@pytest.mark.parametrize(
    "raw",
    [
        {key: value for key, value in RAW.items() if key != "elapsed"},
        {**RAW, "more": 1},
        {**{key: value for key, value in RAW.items() if key != "elapsed"}, "seconds": 1},
    ],
    ids=["one less", "one more", "another"],
)
def test_other_results_are_not_taken_for_http(raw: dict[str, object]) -> None:
    assert ask("step.paging is defined", names_of(raw)) is False
    assert ask("output.paging is defined", names_of(raw)) is False
