"""A host that only reads takes no work."""

from __future__ import annotations

import pytest

from noetl.cli.attach import attach
from noetl.cli.client import Refused
from noetl.settings import read_settings
from tests.support.postgres import temporary_home
from tests.support.yaml import one_step


def test_a_reader_refuses_a_submission_at_once() -> None:
    with temporary_home() as home:
        attachment = attach(read_settings({"NOETL_HOME": str(home)}), resume=False)
        try:
            with pytest.raises(Refused) as refused:
                attachment.client.start(one_step("result = 1"), file="x.yaml", payload={}, idempotency_key="k")
            assert refused.value.status == 503
            assert attachment.client.list(limit=5) == []
        finally:
            attachment.leave()
