"""Counts in Prometheus' text format. Labels are rows of the route table, never what a client wrote."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

import runbook
from runbook.serve.changed import Changed
from runbook.serve.page import Page

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """`registry` is for whoever has something to count: `Gauge(…, registry=metrics.registry)`."""

    def __init__(self, changed: Changed) -> None:
        self.registry = CollectorRegistry()
        labels = ["path", "method"]
        self._requests = Counter(
            "runbook_http_requests", "Requests that were answered.", [*labels, "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "runbook_http_seconds", "Until the answer begins.", labels, buckets=BUCKETS, registry=self.registry
        )
        streams = Gauge("runbook_event_streams", "Event streams that are open.", registry=self.registry)
        streams.set_function(lambda: len(changed))
        about = Gauge("runbook_build_info", "The version that runs.", ["version"], registry=self.registry)
        about.labels(runbook.__version__).set(1)

    def measure(self, page: Page, method: str, status: int, seconds: float) -> None:
        self._requests.labels(page.path, method, str(status)).inc()
        self._seconds.labels(page.path, method).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
