"""Cost of spans and metrics per iteration with a tool call: `python benchmarks/telemetry.py`.

Iterations use a scripted model, which costs nearly nothing, a model over HTTP, or a model over HTTP and a SQLite log.
"fold" only folds events. "no SDK" adds the spans of opentelemetry-api without an SDK, so it is the cost of rxloop
without that of OpenTelemetry. "SDK alone" creates two spans with the same attributes by hand, which is the minimum.

CPU times are measured in pairs: each run with a view is compared with a run without a view directly before or after it.
The table contains the median and the quartiles of these ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from endpoint import server
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, set_span_in_context
from prometheus_client import CollectorRegistry
from tables import table

from rxloop import Agent, EventLog, Limits, SqliteEventLog, Usage, op, openai_chat
from rxloop.operators.views.make_view import make_view
from rxloop.operators.views.spans import view_operations
from rxloop.protocol.events import ContentCompleteEvent, Event, ToolCompleteEvent
from rxloop.stream.sources import DURABLE
from rxloop.telemetry.measurements import make_prometheus_recorder
from rxloop.telemetry.operations import OperationFold, Recorder
from rxloop.testing import ScriptedModel, call, turn

FEW, MANY = 20, 200
"""Iterations of a run. The difference of the calls of both runs excludes the cost of the start and the end."""
TIMED = 50
"""Iterations of a run whose time is measured. Many short runs depend less on other programs than a few long ones."""


def sdk_view(tracers: TracerProvider) -> Any:
    """Return a view that creates the spans of an iteration by hand, without a fold."""
    tracer = tracers.get_tracer("rxloop")
    context = set_span_in_context(tracer.start_span("invoke_agent"), Context())
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "bench",
        "gen_ai.conversation.id": "0192a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
        "rxloop.step": "1",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.time_to_first_chunk": 0.001,
    }
    origin = {
        "gen_ai.response.id": "chatcmpl-0123456789abcdef",
        "gen_ai.response.model": "bench",
        "gen_ai.request.stream": True,
        "server.address": "127.0.0.1",
        "server.port": 80,
    }
    execute = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_1",
        "rxloop.step": "1",
    }

    def create(event: Event) -> None:
        kind = type(event)
        if kind is ContentCompleteEvent:
            attributes = chat if event.response is None else {**chat, **origin}  # pyright: ignore[reportAttributeAccessIssue]
            tracer.start_span("chat", context, SpanKind.CLIENT, attributes, None, 1_000).end(2_000)
        elif kind is ToolCompleteEvent:
            tracer.start_span("execute_tool", context, SpanKind.INTERNAL, execute, None, 1_000).end(2_000)

    view = make_view(lambda out: create)
    vars(view)[DURABLE] = True
    return view


def make_views() -> dict[str, list[Any]]:
    """Return the measured views by name."""
    tracers = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    prometheus = make_prometheus_recorder(CollectorRegistry())
    return {
        "fold": [view_operations(lambda emit: OperationFold(Recorder()))],
        "Prometheus": [view_operations(lambda emit: OperationFold(prometheus))],
        "spans, no SDK": [op.spans(metrics=False)],
        "SDK alone": [sdk_view(tracers)],
        "spans": [op.spans(tracer_provider=tracers, metrics=False)],
        "spans and metrics": [op.spans(tracer_provider=tracers, meter_provider=meters)],
    }


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Bench:
    """Runs with a model over HTTP, or with a scripted model if there is no URL."""

    def __init__(self, url: str | None, log: EventLog | None = None) -> None:
        self._url, self._log = url, log

    def _make_agent(self, count: int, views: list[Any]) -> Agent:
        if self._url is None:
            step = turn(calls=[call("add", a=1, b=2)], usage=Usage(input_tokens=10, output_tokens=3))
            model: Any = ScriptedModel(*[step] * count, "Done.")
        else:
            model = openai_chat("bench", base_url=f"{self._url}/tools/{count}", api_key="key")
        limits = Limits(iterations=None)
        return Agent(model, tools=[add], limits=limits, views=views, thoughts=self._log is not None, log=self._log)

    async def measure_time(self, views: list[Any]) -> float:
        """Return the CPU time of an iteration in seconds."""
        agent = self._make_agent(TIMED, views)
        gc.collect()
        start = time.process_time()
        await agent.run("Count.")
        seconds = time.process_time() - start
        await agent.aclose()
        return seconds / TIMED

    async def count_calls(self, views: list[Any]) -> float:
        """Return the number of calls of an iteration."""
        counts: list[int] = []
        for count in (FEW, MANY):
            agent = self._make_agent(count, views)
            profile = cProfile.Profile()
            profile.enable()
            await agent.run("Count.")
            profile.disable()
            await agent.aclose()
            entries: list[Any] = profile.getstats()
            counts.append(sum(entry.callcount for entry in entries))
        return (counts[1] - counts[0]) / (MANY - FEW)


async def measure(title: str, bench: Bench, rounds: int) -> str:
    """Return a table of the costs per iteration."""
    views = make_views()
    for each in [[], *views.values()]:
        await bench.measure_time(each)
    plain = await bench.count_calls([])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in views}
    for number in range(rounds):
        for name, each in views.items():
            if number % 2:
                with_view = await bench.measure_time(each)
                times[name].append((with_view, await bench.measure_time([])))
            else:
                without_view = await bench.measure_time([])
                times[name].append((await bench.measure_time(each), without_view))
    base = statistics.median(without for pairs in times.values() for _, without in pairs)
    rows = [[title, "CPU time", "", "quartiles", "calls", ""]]
    rows.append(["nothing", f"{base * 1e6:.0f} µs", "", "", f"{plain:.0f}", ""])
    for name, each in views.items():
        added = statistics.median(a - b for a, b in times[name])
        low, middle, high = statistics.quantiles([a / b - 1 for a, b in times[name]], n=4)
        calls = await bench.count_calls(each) - plain
        cpu = [f"{added * 1e6:+.0f} µs", f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}"]
        rows.append([name, *cpu, f"{calls:+.0f}", f"{calls / plain:+.1%}"])
    return table(rows)


async def measure_all(url: str, rounds: int) -> None:
    """Print the costs for all kinds of runs."""
    print(await measure("scripted model", Bench(None), rounds) + "\n", flush=True)
    print(await measure("model over HTTP", Bench(url), rounds) + "\n", flush=True)
    with TemporaryDirectory() as folder:
        log = SqliteEventLog(Path(folder) / "runs.db")
        print(await measure("HTTP, SQLite log", Bench(url, log), rounds))
        await log.aclose()


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(prog="benchmarks/telemetry.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="number of pairs of runs for each view")
    rounds: int = parser.parse_args().rounds
    with server() as url:
        asyncio.run(measure_all(url, rounds))


if __name__ == "__main__":
    main()
