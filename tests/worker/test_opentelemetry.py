"""Outcomes are metrics and span attributes of OpenTelemetry, beside its own instrumentation of Celery."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
from celery import Celery
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_exclusive import Exclusive, Unique, lock
from celery_exclusive.contrib.opentelemetry import ExclusiveInstrumentor
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import SECOND
from celery_exclusive.signals import LockOutcome, lock_outcome, send
from tests.worker.embedded import embedded, memory_app
from tests.worker.journal import eventually

DEADLINE = 60
pytestmark = [
    pytest.mark.usefixtures("no_receivers"),
    pytest.mark.promise(
        "With OpenTelemetry outcomes are counted by task, waits and holds are measured, and the span of a "
        "task, of its publisher or of the code around a `lock()` tells the outcome",
        broke="sent before the span of the run; a wait that is not over is measured; `released` described",
    ),
]


class Telemetry:
    """The real SDK, with exporters in memory."""

    def __init__(self) -> None:
        self._reader, self._spans, self.tracers = (
            InMemoryMetricReader(),
            InMemorySpanExporter(),
            TracerProvider(),
        )
        self.meters = MeterProvider([self._reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))

    def points(self, name: str) -> dict[tuple[Any, ...], Any]:
        """The data points of a metric, by the values of their attributes in order of the names."""
        data = self._reader.get_metrics_data()
        return {
            tuple(value for _, value in sorted((point.attributes or {}).items())): point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"celery_exclusive.{name}"
            for point in metric.data.data_points
        }

    def counts(self) -> dict[tuple[Any, ...], int]:
        return {labels: point.value for labels, point in self.points("outcomes").items()}

    def span(self, name: str, **attributes: str) -> ReadableSpan:
        """Wait for the span with this name and attributes."""

        def find() -> ReadableSpan | None:
            wanted = {f"celery_exclusive.{of}": value for of, value in attributes.items()}
            found = (span for span in self._spans.get_finished_spans() if span.name == name)
            return next((span for span in found if wanted.items() <= (span.attributes or {}).items()), None)

        seen: ReadableSpan = eventually(find, f"span {name} with {attributes}", DEADLINE)
        return seen


@pytest.fixture
def telemetry(no_receivers: None) -> Iterator[Telemetry]:
    telemetry = Telemetry()
    ExclusiveInstrumentor().instrument(meter_provider=telemetry.meters)
    CeleryInstrumentor().instrument(meter_provider=telemetry.meters, tracer_provider=telemetry.tracers)
    yield telemetry
    CeleryInstrumentor().uninstrument()
    ExclusiveInstrumentor().uninstrument()
    telemetry.meters.shutdown()
    telemetry.tracers.shutdown()
    assert not lock_outcome.receivers


@pytest.fixture
def app() -> Iterator[Celery]:
    app = memory_app("feeds")
    yield app
    app.close()


def test_the_spans_of_runs_and_the_metrics_tell_outcomes(app: Celery, telemetry: Telemetry) -> None:
    @app.task(
        name="feeds.load", shared=False, exclusive=Exclusive("url", on_conflict="skip"), unique=Unique()
    )
    def load(url: str) -> str:
        return url

    app.finalize()
    task = app.tasks["feeds.load"]
    key = task.lock_state("a").key
    with embedded(app, "threads", slots=2):
        assert task.delay("a").get(timeout=DEADLINE) == "a"
        begun = telemetry.span("run/feeds.load", outcome="acquired", lock_key=key)
        assert "celery_exclusive.holder_id" not in (begun.attributes or {})
        with lock("another", app=app):
            pass
        app._celery_exclusive.store.apply(key, Claim(key, "other/0", "0" * 16, 60 * SECOND).acquire())  # type: ignore[attr-defined]
        assert task.delay("a").get(timeout=DEADLINE)["skipped"]
        telemetry.span("run/feeds.load", outcome="skipped", reason="held", lock_key=key, holder_id="other")
    counts = telemetry.counts()
    assert counts["acquired", "feeds.load"] == counts["released", "feeds.load"] == 1
    assert counts["skipped", "held", "feeds.load"] == counts[("acquired",)] == 1
    assert telemetry.points("hold.duration")["released", "feeds.load"].count == 1


def test_the_span_around_a_duplicate_call_or_a_lock_tells_its_outcome(
    app: Celery, telemetry: Telemetry
) -> None:
    @app.task(name="feeds.sole", shared=False, unique=Unique())
    def sole() -> None: ...

    app.finalize()
    with telemetry.tracers.get_tracer("tests").start_as_current_span("a view"):
        for _ in range(2):
            app.tasks["feeds.sole"].delay()
    assert telemetry.span("a view", outcome="duplicate", reason="duplicate")
    assert telemetry.counts() == {("duplicate", "duplicate", "feeds.sole"): 1}
    with telemetry.tracers.get_tracer("tests").start_as_current_span("a command"), lock("k", app=app):
        pass
    assert telemetry.span("a command", outcome="acquired", lock_key="x=k")


def test_the_wait_for_a_lock_is_measured_when_it_is_over(app: Celery, telemetry: Telemetry) -> None:
    guard = lock("k", app=app)
    assert guard.acquire()
    assert not lock("k", wait=0.5, app=app).acquire()
    guard.release()
    send(LockOutcome("waited", "feeds.later", "1", "x=k", "held", wait_s=5))  # it is rescheduled once more
    waits = telemetry.points("wait.duration")
    assert {labels: point.count for labels, point in waits.items()} == {("acquired",): 1, ("refused",): 1}
    assert waits[("refused",)].sum > 0


def test_opentelemetry_instrument_finds_the_instrumentor():
    found = entry_points(group="opentelemetry_instrumentor", name="celery_exclusive")
    assert [point.load() for point in found] == [ExclusiveInstrumentor]
