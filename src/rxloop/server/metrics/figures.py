"""Figures of a runtime for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from rxloop import _version
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.events import State
from rxloop.runtime.jobs import get_delay
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.account import Account

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logging.getLogger("rxloop")

_MAX_AGE, _TIMEOUT = 10.0, 2.0
"""Seconds for which figures of the log and the queue are kept, and maximum seconds to wait for them."""
_MAX_SEARCHED = 1_000
"""Maximum number of submitted runs from which the oldest due run is selected."""
_STATES: tuple[State, ...] = ("submitted", "working", "input-required", "auth-required")


class RuntimeFigures(Collector):
    """Collector of the figures of a runtime. Figures of the log and the queue are read by `refresh`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._stored: list[Metric] = []
        """Figures of the log and the queue."""

    async def refresh(self) -> None:
        """Read the figures of the log and the queue, if the last ones are too old. Failures are logged."""
        async with self._lock:
            if time.monotonic() < self._read_at + _MAX_AGE:
                return
            figures: list[Metric] = []
            try:
                async with asyncio.timeout(_TIMEOUT):
                    figures = await _read_figures(self._runtime)
            except Exception as error:
                log.warning("Cannot read the log for metrics: %s", str(error) or f"no answer in {_TIMEOUT:g} s")
            description = "1 if the log and the queue can be read"
            is_available = GaugeMetricFamily("rxloop_log_up", description, value=bool(figures))
            # Replaced at the end, because other servers of the registry can read the figures meanwhile.
            self._stored = [*figures, is_available]
            self._read_at = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures."""
        load, resources = self._runtime.load, self._runtime.log.local.get(Account).total()
        yield InfoMetricFamily("rxloop", "Version of rxloop", value={"version": _version.__version__})
        yield from self._stored
        executing = "Runs that this process executes, each with the lease of its conversation"
        yield GaugeMetricFamily("rxloop_executing_runs", executing, value=load.executing)
        waiting = "Runs that wait for a slot in this process"
        yield GaugeMetricFamily("rxloop_waiting_runs", waiting, value=load.waiting)
        adopted = "Orphaned runs that this process has resumed"
        yield CounterMetricFamily("rxloop_adopted_runs", adopted, value=load.adopted)
        used = "Requests, streams and sessions that clients hold open"
        yield _gauge("rxloop_server_resources", used, "resource", resources)


async def _read_figures(runtime: Runtime) -> list[Metric]:
    """Return the figures of the log and the queue."""
    counts = {state: await read_log(runtime.log.count_runs, state) for state in _STATES}
    records = await read_log(runtime.log.list_runs, states=("submitted",), limit=_MAX_SEARCHED)
    now = time.time()
    due = min((max(record.created / 1000, now + get_delay(record)) for record in records), default=now)
    age = "Age of the oldest due run that has not started"
    figures = [
        _gauge("rxloop_runs", "Unfinished runs in the log by state", "state", counts),
        GaugeMetricFamily("rxloop_oldest_submitted_run_age_seconds", age, value=max(0.0, now - due)),
    ]
    if runtime.queue is not None:
        jobs = await runtime.queue.waiting()
        figures.append(GaugeMetricFamily("rxloop_queue_jobs", "Jobs that wait for a worker", value=jobs))
    return figures


def _gauge(name: str, description: str, label: str, values: Mapping[Any, float]) -> Metric:
    """Return a gauge with a value for each value of a label."""
    gauge = GaugeMetricFamily(name, description, labels=[label])
    for each, number in values.items():
        gauge.add_metric([each], number)
    return gauge
