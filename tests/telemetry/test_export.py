"""Export of spans over OTLP to an HTTP server, also after the process of a run was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from typer.testing import CliRunner

from rxloop import SqliteEventLog, op, replay
from rxloop.cli.app import app
from support.otlp_receiver import Receiver, find_attribute, receive_spans

CRASHING_RUN = """
import asyncio, os, signal, sys
from rxloop import Agent, SqliteEventLog, tool
from rxloop.testing import ScriptedModel, call

@tool
async def crash() -> str:
    "Kills the process."
    os.kill(os.getpid(), signal.SIGKILL)
    return ""

async def main() -> None:
    log = SqliteEventLog(sys.argv[1])
    await Agent(ScriptedModel(call("crash"), "done"), tools=[crash], name="guide", log=log).run("Go.")

asyncio.run(main())
"""


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receive_spans() as receiver:
        yield receiver


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Log of a run whose process was killed during a tool call."""
    path = tmp_path / "runs.db"
    killed = subprocess.run([sys.executable, "-c", CRASHING_RUN, str(path)], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    return path


async def test_spans_of_a_killed_process_are_exported_once_from_its_log(receiver: Receiver, crashed: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    log = SqliteEventLog(crashed)
    [record] = await log.list_runs()
    await replay(log, record.task_id).pipe(op.spans(tracer_provider=provider, metrics=False))
    await log.aclose()
    provider.shutdown()

    assert sorted(span.name for span in receiver.spans) == ["chat scripted", "execute_tool crash", "invoke_agent guide"]
    assert receiver.scopes == {"rxloop"}
    errors = {span.name: find_attribute(span, "error.type") for span in receiver.spans}
    assert errors == {"chat scripted": None, "execute_tool crash": "interrupted", "invoke_agent guide": "interrupted"}
    [agent] = [span for span in receiver.spans if not span.parent_span_id]
    assert {span.parent_span_id for span in receiver.spans if span is not agent} == {agent.span_id}
    assert agent.start_time_unix_nano // 1_000_000 <= agent.end_time_unix_nano // 1_000_000


def export(path: Path, *options: str, endpoint: str) -> tuple[int, str]:
    """Execute `rxloop export last --otel`, and return its exit code and messages."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1", "RXLOOP_DB": str(path)}
    result = CliRunner().invoke(app, ["export", "last", "--otel", *options], env=environment)
    return result.exit_code, result.stderr


def test_export_command_sends_a_recorded_run_with_its_times_and_the_same_ids(receiver: Receiver, crashed: Path) -> None:
    code, messages = export(crashed, endpoint=receiver.url)
    assert code == 0, messages
    assert messages.endswith(": 3 spans\n")
    first = list(receiver.spans)
    export(crashed, endpoint=receiver.url)

    assert receiver.spans[3:] == first
    names = {span.name for span in first}
    assert names == {"chat scripted", "execute_tool crash", "invoke_agent guide"}
    assert all(find_attribute(span, "gen_ai.input.messages") is None for span in first)
    export(crashed, "--full", endpoint=receiver.url)
    assert "Go." in str(find_attribute(receiver.spans[-1], "gen_ai.input.messages"))


def test_exported_spans_have_the_service_name_of_the_environment(
    receiver: Receiver, crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    export(crashed, endpoint=receiver.url)
    assert receiver.services == {"rxloop"}
    monkeypatch.setenv("OTEL_SERVICE_NAME", "support")
    export(crashed, endpoint=receiver.url)
    assert receiver.services == {"rxloop", "support"}


def test_export_command_fails_if_the_server_refuses_the_spans(receiver: Receiver, crashed: Path) -> None:
    receiver.status = 400
    code, messages = export(crashed, endpoint=receiver.url)
    assert code == 1
    assert "check the server, and the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT" in " ".join(messages.split())


def test_export_command_names_a_missing_package(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rxloop.telemetry.export", None)
    code, messages = export(crashed, endpoint="http://127.0.0.1:1")
    assert code != 0
    assert "pip install opentelemetry-exporter-otlp-proto-http" in " ".join(messages.split())
