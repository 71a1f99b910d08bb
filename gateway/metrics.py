"""What GET /metrics tells Prometheus: read from the owners of each fact at the moment of asking, nothing is kept here.

Text format 0.0.4, as `prometheus_client` writes it. Sizes in bytes, durations in seconds, as its naming rules say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily as Sum
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.core import Metric

from jobs.health import health
from jobs.tallies import Distribution

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Counters of a device's book (comfy.ledger.Counters): name here, name there, help.
_OF_MODELS = (
    ("model_loads", "loads", "Times a model was put on the device"),
    ("model_evictions", "evictions", "Times a model was taken off the device"),
    ("model_copied_bytes", "copied_bytes", "Weights copied to the device to stay"),
    ("model_streamed_bytes", "streamed_bytes", "Weights copied to the device for one call of their layer"),
    ("model_patches", "patches", "Weights computed anew because of LoRAs and the like"),
)


class Metrics:
    """The collector of one server."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def text(self) -> bytes:
        """The answer of GET /metrics. Takes milliseconds: not for the event loop."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is collected at registration: the server is not complete then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families; called by the registry."""
        state = health(self._server)
        yield Info("darkroom_instance", "This start of the server", value={"id": state["instance_id"]})
        yield _gauge("darkroom_nodes_ready", "Whether the nodes are loaded", state["nodes_ready"])
        yield _gauge("darkroom_degraded", "Whether something an operator should know is amiss", state["status"] != "ok")
        queue = state["queue"]
        yield _gauge("darkroom_queue_pending", "Prompts that wait", queue["pending"])
        yield _gauge("darkroom_queue_running", "Prompts that run", queue["running"])
        yield _gauge("darkroom_queue_paused", "Whether the queue is paused", queue["paused"])
        yield _gauge("darkroom_websockets", "Open WebSockets", len(self._server.hub))
        yield _one_of("darkroom_worker", "What the worker is doing", "state", state["worker"]["state"])
        yield from _store(state["store"])
        yield from self._ended()
        yield from _results(self._server.cache_report())
        if state["nodes_ready"] and "comfy.ledger" in sys.modules:  # otherwise no model has been loaded yet
            yield from _models(sys.modules["comfy.ledger"].report())

    def _ended(self) -> Iterator[Metric]:
        tallies = self._server.jobs.tallies
        with tallies.lock:
            ended = Sum("darkroom_jobs_ended", "Jobs that ended since the start", labels=["state", "reason"])
            for labels, count in sorted(tallies.ended.items()):
                ended.add_metric(labels, count)
            attempts = Sum("darkroom_job_attempts", "Attempts of those jobs", labels=["result"])
            for result, count in sorted(tallies.attempts.items()):
                attempts.add_metric([result], count)
            run = Histogram("darkroom_job_run_seconds", "How long the last attempt ran", labels=["state"])
            for state, distribution in sorted(tallies.run.items()):
                _fill(run, [state], distribution)
            wait = Histogram("darkroom_job_wait_seconds", "From submission to the first attempt", labels=[])
            _fill(wait, [], tallies.wait)
        yield from (ended, attempts, run, wait)


def _gauge(name: str, text: str, value: float) -> Gauge:
    return Gauge(name, text, value=float(value))


def _one_of(name: str, text: str, label: str, value: str) -> Gauge:
    family = Gauge(name, text, labels=[label])
    family.add_metric([value], 1.0)
    return family


def _fill(family: Histogram, labels: list[str], distribution: Distribution) -> None:
    buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in distribution.buckets()]
    family.add_metric(labels, buckets, distribution.sum)


def _store(store: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("darkroom_store_degraded", "Whether jobs are kept in memory against the wish", store["state"] != "ok")
    yield _gauge("darkroom_store_persistent", "Whether jobs are kept on disk", store["persistent"])
    jobs = Gauge("darkroom_jobs", "Jobs in the store", labels=["state"])
    for state, count in sorted(store["jobs"].items()):
        jobs.add_metric([state], count)
    yield jobs


def _results(report: Mapping[str, Any] | None) -> Iterator[Metric]:
    """The cache of results of nodes; nothing before there is a worker."""
    if report is None:
        return
    yield _gauge("darkroom_cache_entries", "Results of nodes that are kept", report["entries"])
    yield _gauge("darkroom_cache_bytes", "Tensors in memory that they hold", report["bytes"])
    for name, text in (
        ("hits", "Nodes whose result was there when their prompt started"),
        ("misses", "Results that had to be made"),
        ("evictions", "Results dropped to make room"),
    ):
        yield Sum(f"darkroom_cache_{name}", text, value=report[name])


def _models(report: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("darkroom_ram_total_bytes", "RAM this process may use", report["ram"]["total"])
    yield _gauge("darkroom_ram_available_bytes", "RAM that could be had now", report["ram"]["available"])
    devices = report["devices"]
    for name, key, text in (
        ("total", "total", "Memory of the device"),
        ("free", "free", "Memory of the device that could be had now"),
        ("peak", "peak", "Most that was in use on the device"),
    ):
        family = Gauge(f"darkroom_device_{name}_bytes", text, labels=["device"])
        for device in devices:
            family.add_metric([device["device"]], device[key])
        yield family
    resident = Gauge("darkroom_models_resident", "Models on the device", labels=["device"])
    size = Gauge("darkroom_models_resident_bytes", "Their weights on the device", labels=["device"])
    for device in devices:
        loaded = [model["loaded_bytes"] for model in device["models"] if model["loaded_bytes"]]
        resident.add_metric([device["device"]], len(loaded))
        size.add_metric([device["device"]], sum(loaded))
    yield from (resident, size)
    for name, key, text in _OF_MODELS:
        counted = Sum(f"darkroom_{name}", text, labels=["device"])
        for device in devices:
            counted.add_metric([device["device"]], device["counters"][key])
        yield counted
