"""OpenTelemetry: an instrument that makes spans and metrics of this process's own locks.

    from lockclient.instruments.opentelemetry import OpenTelemetryInstrument

    ClusterMutex.setup(instruments=[OpenTelemetryInstrument()])

Each acquisition has a span for its wait and one for its hold, in the trace of who asked. The ids of
the trace and of the first span stand in the lock's `context`, so that the dashboard can link to it
(`--trace-url`), and that whoever waits for it has a link to it in its own span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
)

from lockclient.instruments import (
    Acquired,
    Asked,
    Event,
    EventsDropped,
    GaveUp,
    LockEvent,
    Lost,
    Pushed,
    PushFailed,
    Released,
    Requested,
    Waiting,
)
from lockclient.instruments.metric_names import (
    DROPPED,
    HELD,
    HOLD,
    LOSSES,
    PUSHES,
    REQUEST,
    WAIT,
    WAITING,
    wait_outcome,
)
from lockclient.model.holder import Holder
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
        self._wait_s = meter.create_histogram(WAIT[0], "s", WAIT[1])
        self._hold_s = meter.create_histogram(HOLD[0], "s", HOLD[1])
        self._request_s = meter.create_histogram(REQUEST[0], "s", REQUEST[1])
        self._held = meter.create_up_down_counter(HELD[0], "1", HELD[1])
        self._waiting = meter.create_up_down_counter(WAITING[0], "1", WAITING[1])
        self._losses = meter.create_counter(LOSSES[0], "1", LOSSES[1])
        self._pushes = meter.create_counter(PUSHES[0], "1", PUSHES[1])
        self._dropped = meter.create_counter(DROPPED[0], "1", DROPPED[1])
        # Of one acquisition each, in whose context it is set.
        self._wait: ContextVar[Span] = ContextVar("clustermutex_wait_span")
        self._hold: ContextVar[Span] = ContextVar("clustermutex_hold_span")

    def about(self) -> Mapping[str, str] | None:
        """Begin the span of the wait, and say which it is: called as a lock is asked for."""
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
        if isinstance(event, Requested):
            if type(event) is Requested:  # what is told beside it, is the same request
                facts = {"request": event.request, "outcome": event.outcome}
                self._request_s.record(event.took_s, facts)
        elif isinstance(event, EventsDropped):
            self._dropped.add(event.count)
        elif isinstance(event, LockEvent):
            lock = {} if self._lock_label is None else {"lock": self._lock_label(event.lock)}
            self._measure(event, lock)
            self._trace(event)

    def _measure(self, event: LockEvent, lock: dict[str, str]) -> None:
        if isinstance(event, Asked):
            self._waiting.add(1, lock)
        elif isinstance(event, Acquired | GaveUp):
            self._waiting.add(-1, lock)
            self._wait_s.record(event.waited_s, {**lock, "outcome": wait_outcome(event)})
            if isinstance(event, Acquired):
                self._held.add(1, lock)
        elif isinstance(event, Pushed | PushFailed):
            outcome = "failed" if isinstance(event, PushFailed) else "done"
            self._pushes.add(1, {**lock, "outcome": outcome})
        elif isinstance(event, Released | Lost):
            self._held.add(-1, lock)
            lost = isinstance(event, Lost)
            self._hold_s.record(event.held_s, {**lock, "outcome": "lost" if lost else "released"})
            if lost:
                self._losses.add(1, lock)

    def _trace(self, event: LockEvent) -> None:
        wait, hold = self._wait.get(None), self._hold.get(None)
        at = int(event.at * 1e9)
        if wait is None:  # it was asked for before this instrument was there
            return
        if isinstance(event, Asked):
            wait.set_attributes(_named(event))
        elif isinstance(event, Waiting):
            _add_holder(wait, event)
        elif isinstance(event, GaveUp):
            wait.set_attribute("clustermutex.outcome", wait_outcome(event))
            if event.error is not None:
                wait.record_exception(event.error, timestamp=at)
                wait.set_status(Status(StatusCode.ERROR, str(event.error)))
            wait.end(at)
        elif isinstance(event, Acquired):
            wait.set_attribute("clustermutex.outcome", "acquired")
            wait.end(at)
            self._hold.set(self._begin_hold(event, wait))
        elif hold is not None and isinstance(event, PushFailed):
            facts: dict[str, str | float] = {"error": str(event.error), "left_s": event.left_s}
            hold.add_event("push failed", facts, timestamp=at)
        elif hold is not None and isinstance(event, Released | Lost):
            if isinstance(event, Lost):
                hold.record_exception(event.error, timestamp=at)
                hold.set_status(Status(StatusCode.ERROR, str(event.error)))
            hold.end(at)

    def _begin_hold(self, event: Acquired, wait: Span) -> Span:
        """Begin the span of the hold: beside that of the wait, or below where that has none."""
        around = trace.get_current_span()
        parent = around if around.get_span_context().is_valid else wait
        return self._tracer.start_span(
            "hold lock",
            context=trace.set_span_in_context(parent),
            kind=SpanKind.INTERNAL,
            attributes={**_named(event), "clustermutex.fencing_token": event.fencing_token},
            links=[Link(wait.get_span_context())],
            start_time=int(event.at * 1e9),
        )


def _named(event: LockEvent) -> dict[str, str]:
    return {"clustermutex.lock": event.lock, "clustermutex.uuid": event.uuid}


def _add_holder(wait: Span, event: Waiting) -> None:
    wait.set_attribute("clustermutex.waiting", event.waiting)
    if event.place is not None:
        wait.set_attribute("clustermutex.place", event.place)
    holder = event.holder
    if holder is not None:
        wait.set_attribute("clustermutex.holder.uuid", holder.uuid or "")
        wait.set_attribute("clustermutex.holder.hostname", holder.hostname or "")
        wait.set_attribute("clustermutex.holder.owner", holder.owner or "")
        if (context := _context_of(holder)) is not None:
            wait.add_link(context, {"clustermutex.link": "holder"})


def _context_of(holder: Holder) -> SpanContext | None:
    """Return the span in which a holder got its lock; anybody may have written what is there."""
    said = holder.context or {}
    try:
        trace_id, span_id = int(said["trace_id"], 16), int(said["span_id"], 16)
    except (KeyError, ValueError):
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(1))
    return context if context.is_valid else None
