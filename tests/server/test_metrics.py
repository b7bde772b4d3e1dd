"""Metrics for Prometheus, read with the parsers of its client library."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge, parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from rxloop import Agent, MemoryEventLog, Runtime, TaskEvent, ToolError, Usage, tool
from rxloop.errors import ConfigurationError, EventLogError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import State
from rxloop.server import Principal, api, bearer, metrics
from rxloop.server.metrics import figures
from rxloop.telemetry import measurements
from rxloop.testing import ScriptedModel, call, turn
from support.queues import MemoryQueue

METRICS, TEAM, USER = "metrics-key", "team-key", "user-key"
AUTH = bearer(
    {
        METRICS: Principal("prometheus", frozenset({"metrics"})),
        TEAM: Principal("team", frozenset({"others"})),
        USER: "ann",
    }
)


@tool
async def get_weather(city: str) -> str:
    """Current weather."""
    if city == "Atlantis":
        raise ToolError("no such city")
    return "18 C"


def make_runtime(*turns: Any, **options: Any) -> Runtime:
    calls = [call("get_weather", city=city) for city in ("Oslo", "Atlantis")]
    script = turns or (*calls, turn("Done.", usage=Usage(input_tokens=10, output_tokens=2)))
    agent = Agent(ScriptedModel(*script), tools=[get_weather], thoughts=False)
    return Runtime({"guide": agent}, **{"log": MemoryEventLog(), **options})  # pyright: ignore[reportArgumentType]


async def scrape(app: Any, *, accept: str = "", key: str | None = None, path: str = "/metrics") -> httpx.Response:
    transport = httpx.ASGITransport(app)
    headers = {"accept": accept, **({"authorization": f"Bearer {key}"} if key else {})}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        return await client.get(path)


async def read(app: Any) -> dict[tuple[str, frozenset[str]], float]:
    """Return the samples by name and label values."""
    families = parser.text_string_to_metric_families((await scrape(app)).text)
    return {
        (sample.name, frozenset(sample.labels.values()) - {""}): sample.value
        for family in families
        for sample in family.samples
    }


async def execute(runtime: Runtime, prompt: str = "Go.", **options: Any) -> str:
    record = await runtime.start("guide", prompt, **options)
    async for _ in runtime.follow(record.task_id):
        pass
    return record.task_id


async def test_histograms_contain_the_operations_of_runs() -> None:
    runtime = make_runtime()
    app = metrics(runtime)
    async with runtime:
        await execute(runtime)
        samples = await read(app)

    def find(name: str, *labels: str) -> float:
        return samples[name, frozenset(labels)]

    chat = ("chat", "scripted")
    assert find("gen_ai_client_operation_duration_seconds_count", *chat) == 3
    assert find("gen_ai_client_token_usage_sum", *chat, "input") == 10
    assert find("gen_ai_client_token_usage_sum", *chat, "output") == 2
    assert find("gen_ai_client_operation_time_to_first_chunk_seconds_count", *chat) == 3
    tool_labels = ("get_weather", "function")
    assert find("gen_ai_execute_tool_duration_seconds_count", *tool_labels) == 1
    assert find("gen_ai_execute_tool_duration_seconds_count", *tool_labels, "tool_error") == 1
    assert find("gen_ai_invoke_agent_duration_seconds_count", "guide") == 1
    assert find("gen_ai_client_token_usage_bucket", *chat, "input", "16.0") == 1
    assert find("gen_ai_client_token_usage_bucket", *chat, "input", "4.0") == 0


async def test_figures_describe_the_runtime_and_the_log() -> None:
    ended = asyncio.Event()

    @tool
    async def wait() -> None:
        await ended.wait()

    model = ScriptedModel(call("wait"), "Done.", call("wait"), "Done.")
    agent = Agent(model, tools=[wait], thoughts=False)
    runtime = Runtime({"guide": agent}, log=MemoryEventLog(), concurrency=1)
    app = metrics(runtime)
    async with runtime:
        first, second = [await runtime.start("guide", "Go.") for _ in range(2)]
        # Live readers receive events before they are in the log.
        async for event in runtime.log.follow(first.task_id):
            if event.kind == "tool-start":
                break
        samples = await read(app)
        ended.set()
        for record in (first, second):
            async for _ in runtime.follow(record.task_id):
                pass

    none = frozenset[str]()
    assert samples["rxloop_log_up", none] == 1
    assert samples["rxloop_runs", frozenset({"working"})] == 1
    assert samples["rxloop_runs", frozenset({"submitted"})] == 1
    assert samples["rxloop_runs", frozenset({"input-required"})] == 0
    assert 0 < samples["rxloop_oldest_submitted_run_age_seconds", none] < 60
    assert samples["rxloop_executing_runs", none] == 1
    assert samples["rxloop_waiting_runs", none] == 1
    assert samples["rxloop_adopted_runs_total", none] == 0
    assert samples["rxloop_server_resources", frozenset({"requests"})] == 1
    assert ("rxloop_queue_jobs", none) not in samples


async def test_all_unfinished_runs_are_counted() -> None:
    log = MemoryEventLog()
    for number in range(1_100):
        task = TaskEvent(task_id=f"run{number}", seq=1, attempt=1, messages=[], model="m", agent_name="guide")
        await log.append(task.task_id, [task], expected_seq=0)
    samples = await read(metrics(make_runtime(log=log)))
    assert samples["rxloop_runs", frozenset({"submitted"})] == 1_100


async def test_adopted_runs_and_jobs_are_counted() -> None:
    log, queue, none = MemoryEventLog(), MemoryQueue(), frozenset[str]()
    producer = make_runtime(log=log, queue=queue, is_worker=False)
    app = metrics(producer)
    async with producer:
        await producer.start("guide", "Later.", at=datetime.now(UTC) + timedelta(days=1))
        await producer.start("guide", "Long ago.", at=datetime.now(UTC) - timedelta(days=1))
        samples = await read(app)
    assert samples["rxloop_runs", frozenset({"submitted"})] == 2
    assert samples["rxloop_queue_jobs", none] == await queue.waiting()
    assert samples["rxloop_oldest_submitted_run_age_seconds", none] < 60

    started, other = asyncio.Event(), MemoryEventLog()

    @tool(idempotent=True)
    async def wait() -> None:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()

    agent = Agent(ScriptedModel(call("wait"), "Done."), tools=[wait], name="guide", thoughts=False)
    run = agent.with_log(other).run("Go.")
    run.start()
    await started.wait()
    await run.release()
    runtime = Runtime({"guide": agent}, log=other)
    app = metrics(runtime)
    async with runtime:
        async for _ in runtime.follow(run.task_id):
            pass
        assert (await read(app))["rxloop_adopted_runs_total", none] == 1


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html, text/plain;version=0.0.4;q=0.5", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=latest", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
    ],
)
async def test_format_depends_on_the_accept_header(accept: str, media_type: str) -> None:
    runtime = make_runtime()
    app = metrics(runtime)
    async with runtime:
        await execute(runtime)
        response = await scrape(app, accept=accept)
    assert response.headers["content-type"] == media_type
    parse: Any = openmetrics_parser if "openmetrics" in media_type else parser
    names = {family.name for family in parse.text_string_to_metric_families(response.text)}
    assert {"gen_ai_client_operation_duration_seconds", "rxloop_runs"} <= names


@pytest.mark.parametrize(("key", "status"), [(METRICS, 200), (TEAM, 200), (USER, 403), ("wrong", 401), (None, 401)])
async def test_metrics_require_a_scope_if_the_server_has_authentication(key: str | None, status: int) -> None:
    runtime = make_runtime()
    app = metrics(runtime, auth=AUTH)
    async with runtime:
        response = await scrape(app, key=key)
    assert response.status_code == status
    assert ("rxloop_runs" in response.text) == (status == 200)


@pytest.mark.parametrize("route", [Route, Mount])
async def test_metrics_are_mounted_next_to_the_api(route: Any) -> None:
    runtime = make_runtime()
    app = Starlette(routes=[route("/metrics", metrics(runtime)), Mount("/", api(runtime))])
    async with runtime:
        response = await scrape(app, path="/metrics" if route is Route else "/metrics/")
        assert (response.status_code, (await scrape(app, path="/healthz")).status_code) == (200, 200)
    assert "rxloop_runs" in response.text


class CountingLog(MemoryEventLog):
    """Log that counts queries, and fails if `fails` is set."""

    queries = 0
    fails = False

    async def list_runs(self, **query: Any) -> Sequence[RunRecord]:
        self.queries += 1
        if self.fails:
            raise EventLogError("the disk is full", retryable=False)
        return await super().list_runs(**query)


async def test_log_is_queried_once_for_many_scrapes() -> None:
    log = CountingLog()
    runtime = make_runtime(log=log)
    app = metrics(runtime)
    await read(app)
    queries = log.queries
    await asyncio.gather(*(read(app) for _ in range(5)))
    assert 0 < queries == log.queries


async def test_figures_can_be_read_while_they_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_MAX_AGE", 0.0)
    registry, started, is_released = CollectorRegistry(), asyncio.Event(), asyncio.Event()

    class SlowLog(MemoryEventLog):
        async def count_runs(self, state: State) -> int:
            started.set()
            await is_released.wait()
            return await super().count_runs(state)

    app = metrics(make_runtime(log=SlowLog()), registry=registry)
    is_released.set()
    await read(app)
    started.clear()
    is_released.clear()
    update = asyncio.create_task(read(app))
    await started.wait()
    assert registry.get_sample_value("rxloop_runs", {"state": "working"}) == 0
    assert registry.get_sample_value("rxloop_log_up") == 1
    is_released.set()
    await update


def test_registry_of_another_runtime_is_refused_and_unchanged() -> None:
    registry = CollectorRegistry()
    metrics(make_runtime(), registry=registry)
    with pytest.raises(ConfigurationError, match="registry must be a new one for each runtime"):
        metrics(make_runtime(), registry=registry)
    assert [family.name for family in registry.collect()].count("rxloop_executing_runs") == 1


async def test_metrics_are_served_without_figures_of_a_broken_log(caplog: pytest.LogCaptureFixture) -> None:
    log = CountingLog()
    log.fails = True
    samples = await read(metrics(make_runtime(log=log)))
    assert samples["rxloop_log_up", frozenset()] == 0
    assert not [name for name, _ in samples if name == "rxloop_runs"]
    assert "Cannot read the log for metrics: the disk is full" in caplog.text


async def test_number_of_time_series_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_SETS", 20)
    names = [f"tool_{number}" for number in range(30)]
    tools = [{"name": name, "description": "", "parameters": {"type": "object"}} for name in names]
    runtime = make_runtime(turn(calls=[call(name) for name in names]), turn(calls=[call("invented")]), "Done.")
    app = metrics(runtime)
    async with runtime:
        record = await runtime.start("guide", "Go.", client_tools=tools)
        async for event in runtime.follow(record.task_id):
            if event.kind == "status-update" and event.state == "input-required":
                break
        answers = {each.input_id: "yes" for run in await runtime.list_pending() for each in run.inputs}
        await runtime.answer(record.task_id, answers)
        async for _ in runtime.follow(record.task_id):
            pass
        samples = await read(app)
    tools_seen = [labels for name, labels in samples if name == "gen_ai_execute_tool_duration_seconds_count"]
    assert len(tools_seen) <= 20
    assert any("other" in labels for labels in tools_seen)
    assert not any("invented" in labels for labels in tools_seen)


async def test_registry_of_the_program_can_be_used() -> None:
    registry = CollectorRegistry()
    Gauge("queue_of_the_program", "Mine", registry=registry).set(3)
    samples = await read(metrics(make_runtime(), registry=registry))
    assert samples["queue_of_the_program", frozenset()] == 3
    assert samples["rxloop_log_up", frozenset()] == 1


def test_missing_package_is_named_and_opentelemetry_is_not_imported() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
if sys.argv[1] == "missing":
    sys.modules["prometheus_client"] = None
from rxloop import MemoryEventLog, Runtime
from rxloop.server import metrics
try:
    print(type(metrics(Runtime({}, log=MemoryEventLog()))).__name__)
except Exception as error:
    print(type(error).__name__, error)
"""
    outputs = [
        subprocess.run([sys.executable, "-c", program, each], capture_output=True, text=True, check=True).stdout
        for each in ("missing", "installed")
    ]
    expected = "metrics need prometheus-client, which is not installed: pip install 'rxloop[metrics]'"
    assert outputs == [f"ConfigurationError {expected}\n", "MetricsAdapter\n"]
