"""Metrics and span attributes of outcomes, for OpenTelemetry.

An instrumentor, as each `opentelemetry-instrumentation-*` package has: `opentelemetry-instrument celery ...`
switches it on, and so does this, for instance where the tasks are declared:

    from celery_exclusive.contrib.opentelemetry import ExclusiveInstrumentor

    ExclusiveInstrumentor().instrument()

The name in OTEL_PYTHON_DISABLED_INSTRUMENTATIONS is `celery_exclusive`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.metrics import get_meter
from opentelemetry.trace import get_current_span

from celery_exclusive.display import printable
from celery_exclusive.signals import lock_outcome

if TYPE_CHECKING:
    from celery_exclusive.signals import LockOutcome

__all__ = ["ExclusiveInstrumentor"]

_NAME = "celery_exclusive"
_BOUNDARIES = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)
"""Seconds: the default boundaries of a histogram are for milliseconds."""


class ExclusiveInstrumentor(BaseInstrumentor):
    """Counts outcomes, measures waits and holds, and describes the outcome of a task in its span.

    Parameters of `instrument`:
        meter_provider: default: the global one.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        return []  # no version of ours conflicts

    def _instrument(self, **kwargs: Any) -> None:
        meter = get_meter(_NAME, version("celery-exclusive"), kwargs.get("meter_provider"))
        self._outcomes = meter.create_counter(
            f"{_NAME}.outcomes", unit="{outcome}", description="Outcomes of tasks at their locks"
        )
        self._waits, self._holds = (
            meter.create_histogram(
                f"{_NAME}.{what}.duration",
                unit="s",
                description=description,
                explicit_bucket_boundaries_advisory=_BOUNDARIES,
            )
            for what, description in (
                ("wait", "Time from the first try to acquire a key to the last, where it is known"),
                ("hold", "Time for which leases were held"),
            )
        )
        lock_outcome.connect(self._receive, weak=False)

    def _uninstrument(self, **_: Any) -> None:
        lock_outcome.disconnect(self._receive)

    def _receive(self, outcome: LockOutcome, **_: Any) -> None:
        labels = {"outcome": outcome.kind, "task": outcome.task_name}
        told = {name: it for name, it in labels.items() if it is not None}
        self._outcomes.add(1, {**told, "reason": outcome.reason} if outcome.reason else told)
        if outcome.kind in ("released", "lost"):
            self._holds.record(outcome.held_s or 0, told)
        elif outcome.wait_s is not None and outcome.kind != "waited":  # a wait that is not over
            self._waits.record(outcome.wait_s, told)
        if outcome.kind != "released":  # the attributes say how the body began
            _describe(outcome)


def _describe(outcome: LockOutcome) -> None:
    """Set attributes of the current span: of the task that runs, or of the code that publishes or locks."""
    span = get_current_span()
    if span.is_recording():
        facts = asdict(outcome)
        facts["outcome"] = facts.pop("kind")
        for name, value in facts.items():
            if value is not None and name not in ("task_name", "task_id"):
                span.set_attribute(f"{_NAME}.{name}", printable(value) if isinstance(value, str) else value)
