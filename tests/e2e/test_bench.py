"""`noetl bench` prints what it promises."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import cli


def test_a_benchmark_prints_one_object_with_limits_of_the_same_run() -> None:
    with cli() as noetl:
        done = noetl("bench", "latency", "--json")
        assert done.code == 0, done.stderr
        report = json.loads(done.stdout)
        assert set(report) == {"name", "metrics", "machine"}
        assert report["name"] == "latency"
        assert set(report["metrics"]) == {"median_ms", "p95_ms"}
        for metric in report["metrics"].values():
            assert set(metric) == {"value", "unit", "limit", "ratio"}
            assert metric["value"] > 0
            assert metric["limit"] > 0


def test_an_unknown_benchmark_is_exit_two() -> None:
    with cli() as noetl:
        done = noetl("bench", "nonsense")
        assert done.code == 2
        assert "latency" in done.stderr


def test_a_running_host_is_not_disturbed() -> None:
    with cli() as noetl:
        assert noetl("up").code == 0
        done = noetl("bench", "latency")
        assert done.code == 2
        assert "noetl down" in done.stderr


@pytest.mark.long
def test_a_chain_through_processes_keeps_at_least_half_of_the_embedded_speed() -> None:
    with cli() as noetl:
        done = noetl("bench", "chain", "--remote", "--json", timeout=180)
        assert done.code == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["name"] == "chain_remote"
        assert report["metrics"]["steps_per_s"]["ratio"] >= 0.5, report


@pytest.mark.long
def test_the_control_plane_is_measured_while_thousands_of_events_come() -> None:
    with cli() as noetl:
        done = noetl("bench", "control", "--json", timeout=180)
        assert done.code == 0, done.stderr
        report = json.loads(done.stdout)
        limits = {name: metric["limit"] for name, metric in report["metrics"].items() if metric["limit"]}
        assert limits == {
            "status_p99_ms": 10.0,
            "projection_lag_p95_ms": 500.0,
            "checkpoint_age_p99_ms": 1500.0,
            "events_per_s": 5000.0,
        }


@pytest.mark.long
def test_a_shared_rate_holds_over_four_workers_and_two_executions_that_get_half_of_it_each() -> None:
    with cli() as noetl:
        done = noetl("bench", "limits", "--json", timeout=240)
        assert done.code == 0, done.stderr
        metrics = json.loads(done.stdout)["metrics"]
        assert (metrics["rate_error_pct"]["limit"], metrics["share_error_pct"]["limit"]) == (2.0, 5.0)
        assert metrics["rate_error_pct"]["value"] <= 2.0, metrics
        assert metrics["share_error_pct"]["value"] <= 5.0, metrics


@pytest.mark.long
def test_a_million_items_are_worked_off_and_what_each_of_them_cost_is_told() -> None:
    with cli() as noetl:
        done = noetl("bench", "loop", "--json", timeout=900)
        assert done.code == 0, done.stderr
        metrics = json.loads(done.stdout)["metrics"]
        assert {name: metric["limit"] for name, metric in metrics.items() if metric["limit"]} == {
            "items_per_s": 20_000.0,
            "cpu_us_per_item": 60.0,
            "ledger_rows_per_frame": 3.0,
            "last_result_ms": 50.0,
            "python_items_per_s": 10_000.0,
            "memory_grown_mb": 256.0,
        }
        # What hardly depends on how busy a machine is; a frame that takes long says on its way what is durable.
        assert metrics["ledger_rows_per_frame"]["value"] < 3.1, metrics
        assert metrics["memory_grown_mb"]["value"] <= metrics["memory_grown_mb"]["limit"], metrics
