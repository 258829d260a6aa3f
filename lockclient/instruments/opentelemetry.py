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
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from lockclient.instruments import Acquired, Event, GaveUp, Lost, Released
from lockclient.instruments.measures import (
    DROPPED,
    HELD,
    HOLD,
    LOSSES,
    PUSHES,
    REQUEST,
    WAIT,
    Metric,
    measure,
    wait_outcome,
)
from lockclient.version import __version__

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
        lock_label: Callable[[str], str] | None = None,
    ) -> None:
        self._lock_label = lock_label
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        self._count: dict[Metric, Callable[[float, dict[str, str]], Any]] = {}
        for metric in (WAIT, HOLD, REQUEST):
            self._count[metric] = meter.create_histogram(metric.name, "s", metric.help).record
        self._count[HELD] = meter.create_up_down_counter(HELD.name, "1", HELD.help).add
        for metric in (LOSSES, PUSHES, DROPPED):
            self._count[metric] = meter.create_counter(metric.name, "1", metric.help).add
        # Of one acquisition each, in whose context it is set.
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
        """Take an event into spans and metrics."""
        lock = {} if self._lock_label is None else {"lock": self._lock_label(event.lock)}
        for metric, value, labels in measure(event):
            self._count[metric](value, labels if metric is REQUEST else {**lock, **labels})
        if isinstance(event, Acquired | GaveUp):
            self._end_wait(event)
        elif isinstance(event, Released | Lost) and (hold := self._hold.get(None)) is not None:
            self._end(hold, event)

    def dropped(self, count: int) -> None:
        """Count events that were dropped."""
        self._count[DROPPED](count, {})

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
                kind=SpanKind.INTERNAL,
                attributes={**named, "clustermutex.fencing_token": event.fencing_token},
                links=[Link(wait.get_span_context())],
                start_time=int(event.at * 1e9),
            )
            self._hold.set(hold)

    @staticmethod
    def _end(span: Span, event: Event) -> None:
        at = int(event.at * 1e9)
        error: Exception | None = getattr(event, "error", None)
        if error is not None:
            span.record_exception(error, timestamp=at)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(at)
