"""Every variable that the program reads is described, and nothing else is; so is every metric."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from noetl import settings as settings_module
from noetl.cli.pages.metrics import metrics_markdown
from noetl.cli.pages.settings import VARIABLES, settings_markdown
from noetl.core import storage
from noetl.core.errors import SettingsInvalid
from noetl.processes.metrics.catalogue import METRICS
from noetl.settings import read_settings

PAGES = Path(__file__).parents[2] / "docs" / "reference"
DESCRIBED = {name for section in VARIABLES.values() for name in section}
# Environments that make the reader look at everything.
CLOUD = {"NOETL_DEFAULT_STORE_TIER": "s3", "NOETL_STORAGE_BUCKET": "rows"}
KEYS = {"NOETL_ENV_ALLOW": "LANG", "NOETL_AUTH_ENV_ALLOW": "SECRET_OF_SOMEBODY"}


class Asked(Mapping[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_names() -> set[str]:
    found: set[str] = set()
    for values in ({}, CLOUD, KEYS):
        asked = Asked(values)
        read_settings(asked)
        found |= {name for name in asked.names if name.startswith("NOETL_")}
    return found


def test_what_is_read_is_described_and_the_other_way_round() -> None:
    assert read_names() == DESCRIBED


def test_what_is_written_in_the_source_is_read() -> None:
    """A name that only a message or a comment knows would be a variable that does nothing."""
    texts = [inspect.getsource(module) for module in (settings_module, storage)]
    written = {name for text in texts for name in re.findall(r"NOETL_[A-Z0-9_]*[A-Z0-9]", text)}
    assert written - read_names() <= {"NOETL_STORAGE"}


@pytest.mark.parametrize(("name", "text"), [("settings.md", settings_markdown()), ("metrics.md", metrics_markdown())])
def test_the_pages_are_what_their_generator_says(name: str, text: str) -> None:
    assert (PAGES / name).read_text("utf-8") == text, "run: python -m noetl.cli.reference"


def test_the_page_shows_defaults_that_are_true() -> None:
    text = settings_markdown()
    assert "| `NOETL_PORT` | `8082` |" in text
    assert "| `NOETL_HOST` | `127.0.0.1` |" in text
    assert "| `NOETL_DUCKDB_MEMORY_MB` | `1024` |" in text
    assert "| `NOETL_SCRIPT_ROOTS` | `scripts` |" in text
    assert "| `NOETL_WORKER_GRACE_SECONDS` | `25` |" in text
    assert "home-of-the-page" not in text


def test_every_metric_is_on_its_page() -> None:
    text = metrics_markdown()
    assert all(f"| `{name}` | {described.kind} |" in text for name, described in METRICS.items())


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES", "10485760"),
        ("NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES", "100"),
        ("NOETL_DUCKDB_MEMORY_MB", "1"),
        ("NOETL_DUCKDB_THREADS", "0"),
        ("NOETL_WORKER_METRICS_PORT", "-1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(SettingsInvalid, match=variable):
        read_settings({variable: value})


def test_a_port_of_zero_means_no_listener() -> None:
    assert read_settings({"NOETL_WORKER_METRICS_PORT": "0"}).worker_metrics_port is None
    assert read_settings({"NOETL_WORKER_METRICS_PORT": "9100"}).worker_metrics_port == 9100
