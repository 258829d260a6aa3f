"""OpenTelemetry: an instrument that makes spans and metrics of this process's own locks.

    from lockclient.instruments.opentelemetry import OpenTelemetryInstrument

    ClusterMutex.setup(instruments=[OpenTelemetryInstrument()])

Each acquisition has a span for its wait and one for its hold, in the caller's trace. The lock's
`context` has the ids of the trace and of the first span, so that the dashboard can link to it
(`--trace-url`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from lockclient.instruments import Acquired, Event, GaveUp, Lost, Released, measures
from lockclient.instruments.measures import LockLabel, Metric, measure, wait_outcome
from lockclient.model.version import __version__

_SCOPE = "lockclient"


class OpenTelemetryInstrument:
    """An instrument for `ClusterMutex.setup(instruments=[…])`.

    Args:
        tracer_provider, meter_provider: None: those that the program has set for all.
        lock_label: returns for a lock's name what the metrics' attribute `lock` is to be; None:
            there is no such attribute. (Spans always have the lock's whole name.)
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        lock_label: LockLabel = None,
    ) -> None:
        self._lock_label = lock_label
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        held = meter.create_up_down_counter(measures.HELD.name, "1", measures.HELD.help)
        self._count: dict[Metric, Callable[[float, dict[str, str]], Any]] = {
            measures.HELD: held.add
        }
        for metric in measures.HISTOGRAMS:
            self._count[metric] = meter.create_histogram(metric.name, "s", metric.help).record
        for metric in measures.COUNTERS:
            self._count[metric] = meter.create_counter(metric.name, "1", metric.help).add
        # Each is set in the context of one acquisition.
        self._wait: ContextVar[Span] = ContextVar("clustermutex_wait_span")
        self._hold: ContextVar[Span] = ContextVar("clustermutex_hold_span")

    def about(self) -> Mapping[str, str] | None:
        """Begin the span of the wait, and return its ids; called as `acquire` begins."""
        span = self._tracer.start_span("wait for lock", kind=SpanKind.CLIENT)
        self._wait.set(span)
        context = span.get_span_context()
        if not context.is_valid or not context.trace_flags.sampled:
            return None  # a link to it would lead nowhere
        return {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }

    def __call__(self, event: Event) -> None:
        """Count an event, and begin or end spans."""
        for metric, value, labels in measure(event, self._lock_label):
            self._count[metric](value, labels)
        if isinstance(event, Acquired | GaveUp):
            self._end_wait(event)
        elif isinstance(event, Released | Lost):
            self._end(self._hold.get(None), event)

    def dropped(self, count: int) -> None:
        """Count events that were dropped."""
        self._count[measures.DROPPED](count, {})

    def _end_wait(self, event: Acquired | GaveUp) -> None:
        wait = self._wait.get(None)
        if wait is None:  # the acquisition began before this instrument was there
            return
        named = {"clustermutex.lock": event.lock, "clustermutex.uuid": event.uuid}
        wait.set_attributes({**named, "clustermutex.outcome": wait_outcome(event)})
        self._end(wait, event)
        if isinstance(event, Acquired):
            around = trace.get_current_span()
            parent = around if around.get_span_context().is_valid else wait
            hold = self._tracer.start_span(
                "hold lock",
                context=trace.set_span_in_context(parent),
                attributes={**named, "clustermutex.fencing_token": event.fencing_token},
                start_time=int(event.at * 1e9),
            )
            self._hold.set(hold)

    @staticmethod
    def _end(span: Span | None, event: Event) -> None:
        if span is None:
            return
        at = int(event.at * 1e9)
        error: Exception | None = getattr(event, "error", None)
        if error is not None:
            span.record_exception(error, timestamp=at)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(at)
