"""The newest update's figures as Prometheus reads them."""

import socket
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, insert

from infra.ports import free_ports
from infra.records import schema
from infra.records.database import open_database
from workers.control.metrics import serving


@pytest.fixture
def records(tmp_path: Path) -> Engine:
    return open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)


def scraped(port: int) -> dict[tuple[str, str], float]:
    """(name, label value) -> number."""
    answer = httpx2.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=120)
    samples = [one for family in text_string_to_metric_families(answer.text) for one in family.samples]
    return {(sample.name, "".join(sample.labels.values())): sample.value for sample in samples}


def test_a_scrape_reads_the_records(records: Engine) -> None:
    (port,) = free_ports(1)
    step = {"run": "r", "burst": "b", "opened_at": 1.0}
    figures = {"loss": -0.5, "entropy": 2.0, "staleness_tokens": {"0": 7.0, "2": 3.0}}
    with serving(records, "127.0.0.1", port):
        assert scraped(port) == {("gyre_updates", ""): 0}
        with records.begin() as connection:
            for version, metrics in enumerate([{"loss": 9.0}, figures], start=0):
                row = {"version_before": version, "version_after": version + 1, "metrics": metrics}
                connection.execute(insert(schema.batches).values(**step, batch=f"b/{version}", step=version, **row))
        assert scraped(port) == {
            ("gyre_updates", ""): 2,
            ("gyre_update_loss", ""): -0.5,
            ("gyre_update_entropy", ""): 2.0,
            ("gyre_update_staleness_tokens", "0"): 7.0,
            ("gyre_update_staleness_tokens", "2"): 3.0,
        }
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_costs_the_metrics_alone(records: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with serving(records, "127.0.0.1", taken.getsockname()[1]):
            assert "no metrics on port" in caplog.text


def test_without_a_port_nothing_is_served(records: Engine) -> None:
    with serving(records, "127.0.0.1", 0):
        pass
