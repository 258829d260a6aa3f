"""The ready-made instruments, with the real packages: Prometheus and OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id
from prometheus_client import CollectorRegistry

from lockclient import ClusterMutex, Settings, default_store, instruments
from lockclient.instruments import Event, Instrument, Lost
from lockclient.instruments.opentelemetry import OpenTelemetryInstrument
from lockclient.instruments.prometheus import PrometheusInstrument
from lockclient.stores.service_store import ServiceStore
from tests.support.locks import lose
from tests.support.processes import run_to_end, wait_until


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    default_store.defaults.observer = None


def told(instrument: Instrument) -> list[Event]:
    """Set it up for all locks, and return the events that it gets."""
    events: list[Event] = []
    ClusterMutex.setup(instruments=[instrument, events.append])
    return events


def use_it(store: ServiceStore, events: list[Event]) -> None:
    """Hold one lock and push it, fail to get it meanwhile, lose another one."""
    with ClusterMutex("jobs/1", store=store) as held:
        held.alive(force=True)
        assert ClusterMutex("jobs/1", store=store).acquire(blocking=False) is None
    lose(store, ClusterMutex("jobs/2", store=store))
    wait_until(lambda: any(isinstance(event, Lost) for event in events), what="its loss")
    instruments.flush(30)


def test_prometheus(store: ServiceStore) -> None:
    registry = CollectorRegistry()
    instrument = PrometheusInstrument(registry)
    events = told(instrument)
    zero = registry.get_sample_value("clustermutex_client_losses_total")
    assert zero == 0, "what has not happened yet is 0, and not missing"
    use_it(store, events)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"clustermutex_client_{name}", labels)

    assert value("wait_seconds_count", outcome="acquired") == 2
    assert value("wait_seconds_count", outcome="timeout") == 1
    assert value("hold_seconds_count", outcome="released") == 1
    assert value("hold_seconds_count", outcome="lost") == 1
    assert (value("losses_total"), value("held")) == (1, 0)
    pushes = value("pushes_total", outcome="done")
    assert (pushes or 0) >= 1  # a take whose answer takes a second is followed by a push, too
    assert value("pushes_total", outcome="failed") == 0
    assert value("request_seconds_count", request="push", outcome="done") == pushes
    assert value("events_dropped_total") == 0
    instrument.dropped(2)
    assert value("events_dropped_total") == 2


def test_the_label_of_a_lock_is_chosen_by_the_caller(store: ServiceStore) -> None:
    registry = CollectorRegistry()
    label = lambda name: name.partition("/")[0]  # noqa: E731
    use_it(store, told(PrometheusInstrument(registry, lock_label=label)))
    name = "clustermutex_client_losses_total"
    assert registry.get_sample_value(name, {"lock": "jobs"}) == 1


MULTIPROCESS = """
import multiprocessing, sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from lockclient import ClusterMutex, instruments
from lockclient.instruments.prometheus import PrometheusInstrument

ClusterMutex.setup(sys.argv[1], instruments=[PrometheusInstrument()])

def work(number, held, done):
    with ClusterMutex(f"job-{number}"):
        instruments.flush(30)
        held.release()
        done.acquire()
    instruments.flush(30)

fork = multiprocessing.get_context("fork")
held, done = fork.Semaphore(0), fork.Semaphore(0)
workers = [fork.Process(target=work, args=(number, held, done)) for number in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    held.acquire()
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
while_held = generate_latest(registry).decode()
for worker in workers:
    done.release()
for worker in workers:
    worker.join()
print(while_held, generate_latest(registry).decode())
"""


def test_prometheus_in_multiprocess_mode(settings: Settings, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MULTIPROCESS, settings.url()],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "clustermutex_client_held 2.0" in done.stdout
    assert "clustermutex_client_held 0.0" in done.stdout
    assert 'clustermutex_client_hold_seconds_count{outcome="released"} 2.0' in done.stdout


class TestOpenTelemetry:
    def traced(
        self,
    ) -> tuple[InMemorySpanExporter, TracerProvider, InMemoryMetricReader, list[Event]]:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        reader = InMemoryMetricReader()
        events = told(OpenTelemetryInstrument(provider, MeterProvider([reader])))
        return exporter, provider, reader, events

    def test_wait_and_hold_are_spans_of_the_trace(self, store: ServiceStore) -> None:
        exporter, provider, *_ = self.traced()
        request = provider.get_tracer("test").start_as_current_span("request")
        with request as around, ClusterMutex("x", store=store) as held:
            said = held.holder()
        instruments.flush(30)
        spans = {span.name: span for span in exporter.get_finished_spans()}
        wait, hold = spans["wait for lock"], spans["hold lock"]
        for span in (wait, hold):
            assert span.parent is not None
            assert span.parent.span_id == around.get_span_context().span_id
            assert span.attributes is not None
            assert span.attributes["clustermutex.lock"] == "x"
            assert span.attributes["clustermutex.uuid"] == held.uuid
        assert hold.attributes is not None
        assert hold.attributes["clustermutex.fencing_token"] == held.fencing_token
        assert said is not None
        assert said.context == {
            "trace_id": format_trace_id(around.get_span_context().trace_id),
            "span_id": format_span_id(wait.context.span_id),
        }

    def test_a_loss_and_the_metrics(self, store: ServiceStore) -> None:
        exporter, _, reader, events = self.traced()
        use_it(store, events)
        lost = [span for span in exporter.get_finished_spans() if failed(span)]
        assert [span.name for span in lost] == ["hold lock"]
        data = reader.get_metrics_data()
        assert data is not None
        found: dict[str, Any] = {
            metric.name: metric.data.data_points
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        (losses,) = found["clustermutex_client_losses_total"]
        assert losses.value == 1
        assert sum(point.value for point in found["clustermutex_client_held"]) == 0
        waits = found["clustermutex_client_wait_seconds"]
        counts = {point.attributes["outcome"]: point.count for point in waits}
        assert counts == {"acquired": 2, "timeout": 1}

    def test_unsampled_spans_are_not_linked(self, store: ServiceStore) -> None:
        ClusterMutex.setup(instruments=[OpenTelemetryInstrument(TracerProvider(ALWAYS_OFF))])
        with ClusterMutex("x", store=store) as held:
            assert held.record.context is None

    def test_the_api_alone_is_enough(self, settings: Settings) -> None:
        """A library's tests, for example, set up no SDK."""
        program = (
            "import sys\nfrom lockclient import ClusterMutex\n"
            "from lockclient.instruments.opentelemetry import OpenTelemetryInstrument\n"
            "ClusterMutex.setup(sys.argv[1], instruments=[OpenTelemetryInstrument()])\n"
            "with ClusterMutex('x') as held: print(held.record.context)"
        )
        assert run_to_end(sys.executable, "-c", program, settings.url()).stdout == "None\n"


def failed(span: ReadableSpan) -> bool:
    return span.status.status_code is StatusCode.ERROR
