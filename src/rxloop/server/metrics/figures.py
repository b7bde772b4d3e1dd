"""Figures of a runtime for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
        self._is_available = False
        self._counts: dict[State, int] = {}
        self._oldest: float | None = None
        """Time in seconds from which the oldest submitted run has been due, or None."""
        self._jobs: int | None = None

    async def refresh(self) -> None:
        """Read the figures of the log and the queue, if the last ones are too old. Failures are logged."""
        async with self._lock:
            if time.monotonic() < self._read_at + _MAX_AGE:
                return
            self._is_available = False
            try:
                async with asyncio.timeout(_TIMEOUT):
                    await self._read()
                self._is_available = True
            except Exception as error:
                log.warning("Cannot read the log for metrics: %s", str(error) or f"no answer in {_TIMEOUT:g} s")
            self._read_at = time.monotonic()

    async def _read(self) -> None:
        runtime, event_log = self._runtime, self._runtime.log
        for state in _STATES:
            self._counts[state] = await read_log(event_log.count_runs, state)
        records = await read_log(event_log.list_runs, states=("submitted",), limit=_MAX_SEARCHED)
        now = time.time()
        due = (max(record.created / 1000, now + get_delay(record)) for record in records)
        self._oldest = min(due, default=None)
        if runtime.queue is not None:
            self._jobs = await runtime.queue.waiting()

    def describe(self) -> Iterator[Metric]:
        """Return nothing, because the figures are not known before the first request."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures."""
        runtime, load = self._runtime, self._runtime.load
        yield InfoMetricFamily("rxloop", "Version of rxloop", value={"version": _version.__version__})
        yield GaugeMetricFamily("rxloop_log_up", "1 if the log and the queue can be read", value=self._is_available)
        if self._is_available:
            runs = GaugeMetricFamily("rxloop_runs", "Unfinished runs in the log by state", labels=["state"])
            for state, count in self._counts.items():
                runs.add_metric([state], count)
            yield runs
            age = 0.0 if self._oldest is None else max(0.0, time.time() - self._oldest)
            yield GaugeMetricFamily(
                "rxloop_oldest_submitted_run_age_seconds", "Age of the oldest due run that has not started", value=age
            )
            if self._jobs is not None:
                yield GaugeMetricFamily("rxloop_queue_jobs", "Jobs that wait for a worker", value=self._jobs)
        yield GaugeMetricFamily(
            "rxloop_executing_runs",
            "Runs that this process executes, each with the lease of its conversation",
            value=load.executing,
        )
        yield GaugeMetricFamily("rxloop_waiting_runs", "Runs that wait for a slot in this process", value=load.waiting)
        yield CounterMetricFamily(
            "rxloop_adopted_runs", "Orphaned runs that this process has resumed", value=load.adopted
        )
        used = GaugeMetricFamily(
            "rxloop_server_resources", "Requests, streams and sessions that clients hold open", labels=["resource"]
        )
        for resource, count in runtime.log.local.get(Account).total().items():
            used.add_metric([resource], count)
        yield used
