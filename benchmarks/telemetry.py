"""Cost of spans and metrics per iteration with a tool call: `python benchmarks/telemetry.py`.

Iterations use a scripted model, which costs nearly nothing, or a model over HTTP. "fold" only folds events. "no SDK"
adds the spans of opentelemetry-api without an SDK, so it is the cost of rxloop without that of OpenTelemetry.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import time
from collections.abc import Callable
from typing import Any

from endpoint import server
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from tables import table

from rxloop import Agent, Limits, Usage, op, openai_chat
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event, LLMFailedEvent
from rxloop.stream.sources import DURABLE
from rxloop.telemetry.operations import FoldOptions, Operation, OperationFold, Recorder
from rxloop.telemetry.prometheus import PrometheusRecorder
from rxloop.testing import ScriptedModel, call, turn

FEW, MANY = 20, 200
"""Iterations of a run. The difference of both runs excludes the cost of the start and the end."""


class Ignored:
    """Recorder that records nothing."""

    def start(self, operation: Operation) -> None:
        """Ignore a start."""

    def fail(self, operation: Operation, event: LLMFailedEvent) -> None:
        """Ignore a failure."""

    def end(self, operation: Operation) -> None:
        """Ignore an end."""


def fold_view(recorder: Recorder) -> Any:
    """Return a view that passes the operations of a run to a recorder."""

    def subscribe(out: ViewOutput[None]) -> Callable[[Event], None]:
        return OperationFold(FoldOptions(), recorder).add

    view = make_view(subscribe)
    vars(view)[DURABLE] = True
    return view


def make_views() -> dict[str, list[Any]]:
    """Return the measured views by name."""
    tracers = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return {
        "nothing": [],
        "fold": [fold_view(Ignored())],
        "Prometheus": [fold_view(PrometheusRecorder(CollectorRegistry()))],
        "spans, no SDK": [op.spans(metrics=False)],
        "spans": [op.spans(tracer_provider=tracers, metrics=False)],
        "spans and metrics": [op.spans(tracer_provider=tracers, meter_provider=meters)],
    }


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def execute(url: str | None, count: int, views: list[Any]) -> tuple[float, int]:
    """Return the CPU time in seconds and the number of calls of a run."""
    if url is None:
        step = turn(calls=[call("add", a=1, b=2)], usage=Usage(input_tokens=10, output_tokens=3))
        model: Any = ScriptedModel(*[step] * count, "Done.", *[step] * count, "Done.")
    else:
        model = openai_chat("bench", base_url=f"{url}/tools/{count}", api_key="key")
    agent = Agent(model, tools=[add], limits=Limits(iterations=None), views=views, thoughts=False)
    gc.collect()
    start = time.process_time()
    await agent.run("Count.")
    seconds = time.process_time() - start
    profile = cProfile.Profile()
    profile.enable()
    await agent.run("Count.")
    profile.disable()
    await agent.aclose()
    entries: list[Any] = profile.getstats()
    return seconds, sum(entry.callcount for entry in entries)


async def measure(url: str | None, rounds: int) -> str:
    """Return a table of the costs per iteration."""
    views = make_views()
    best = {name: [float("inf"), float("inf"), 0, 0] for name in views}
    for _ in range(rounds):
        for name, each in views.items():
            few, many = await execute(url, FEW, each), await execute(url, MANY, each)
            times = best[name]
            times[:] = [min(times[0], few[0]), min(times[1], many[0]), few[1], many[1]]
    rows = [["model over HTTP" if url else "scripted model", "CPU time", "", "calls", ""]]
    plain: list[float] | None = None
    for name, (few_time, many_time, few_calls, many_calls) in best.items():
        cost = [(many_time - few_time) / (MANY - FEW) * 1e6, (many_calls - few_calls) / (MANY - FEW)]
        plain = plain or cost
        shares = [f"{value / base - 1:+.1%}" for value, base in zip(cost, plain, strict=True)]
        rows.append([name, f"{cost[0]:.0f} µs", shares[0], f"{cost[1]:.0f}", shares[1]])
    return table(rows)


def main() -> None:
    """Print the costs for both models."""
    parser = argparse.ArgumentParser(prog="benchmarks/telemetry.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds, of which the fastest counts")
    rounds: int = parser.parse_args().rounds
    print(asyncio.run(measure(None, rounds)) + "\n")
    with server() as url:
        print(asyncio.run(measure(url, rounds)))


if __name__ == "__main__":
    main()
