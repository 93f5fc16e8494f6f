"""Words of the command line that cannot be meant: what is said about them."""

from __future__ import annotations

import pytest

from noetl.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["worker", "--pool", ""], "a pool is 1 to 100 printable characters"),
        (["demo", "--patients", "0"], "a whole number from 1 to 10,000, not '0'"),
        (["demo", "--patients", "-3"], "from 1 to 10,000"),
        (["demo", "--patients", "9" * 5000], "from 1 to 10,000"),
        (["demo", "--patients", "some"], "from 1 to 10,000"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err
