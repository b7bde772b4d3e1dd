"""Queued runs of `rxloop serve --queue`, executed by `rxloop worker`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import IO

import httpx
import orjson
import pytest

from support.cli_workspace import Workspace
from support.terminals import LIMIT

AGENTS = """
import gc

from rxloop import Agent
from rxloop.testing import ScriptedModel

weather = Agent(ScriptedModel(lambda request: str(gc.get_freeze_count())), name="weather")
"""
RUNTIME = """
from rxloop import PostgresEventLog, Runtime
from rxloop.runtime import PostgresQueue

DSN = "postgresql://localhost:1/app"
runtime = Runtime({"weather": weather}, log=PostgresEventLog(DSN), queue=PostgresQueue(DSN), is_worker=True)
"""


@contextmanager
def start_process(workspace: Workspace, *arguments: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rxloop", *arguments, "--json"]
    environment = {**os.environ, **workspace.env}
    process = subprocess.Popen(
        command, cwd=workspace.folder, env=environment, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def find_line(stream: IO[str] | None, words: str) -> str:
    """Read the log until a line contains the words, and return this line."""
    assert stream is not None
    seen: list[str] = []
    for line in stream:
        seen.append(line)
        if words in line:
            return line
    raise AssertionError("".join(seen))


@pytest.mark.service("postgres")
@pytest.mark.timeout(LIMIT * 3)
def test_worker_executes_runs_queued_by_a_server(workspace: Workspace, postgres_database: str) -> None:
    (workspace.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    arguments = ("shop:weather", "--db", postgres_database)
    with (
        start_process(workspace, "serve", *arguments, "--queue", "--port", "0") as server,
        start_process(workspace, "worker", *arguments, "--concurrency", "2", "--metrics-port", "0") as worker,
    ):
        serving = orjson.loads(find_line(server.stderr, "Serving"))
        assert serving["message"].endswith(", executed by workers")
        url = serving["url"]
        metrics = orjson.loads(find_line(worker.stderr, "Serving metrics"))["url"]
        find_line(worker.stderr, "Executing runs of weather")
        with httpx.Client(base_url=url, timeout=30) as client:
            run = client.post("/runs?wait=20", json={"input": "Weather in Oslo?"}).json()
            assert run["state"] == "completed", run
            frames = client.get(f"/runs/{run['taskId']}/events").text
            assert "content-complete" in frames
            # The tool returns the number of frozen objects in the worker.
            assert int(run["content"]) > 10_000, run
            ended = orjson.loads(find_line(worker.stderr, '"rxloop.runs"'))
            assert (ended["task"], ended["agent"], ended["state"]) == (run["taskId"], "weather", "completed")
        samples = httpx.get(metrics, timeout=30).text.splitlines()
        labels = '{error_type="",gen_ai_agent_name="weather"}'
        assert f"gen_ai_invoke_agent_duration_seconds_count{labels} 1.0" in samples
        assert "rxloop_queue_jobs 0.0" in samples
        worker.send_signal(signal.SIGTERM)
        find_line(worker.stderr, "Stopped")
        assert worker.wait(20) == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("worker", "shop:weather"), "a queue requires a Postgres"),
        (("worker", "shop:weather", "--db", "runs.db"), "got 'runs.db'"),
        (("worker", "shop:weather", "--db", "postgresq://ann:s3cret@db/app"), "got 'postgresq://'"),
        (("worker", "shop:weather", "--db", "host=db user=ann password=s3cret"), "got '...'"),
        (("worker", "shop:weather", "--db", "ann:s3cret@db/app"), "got '...'"),
        (("worker", "shop:weathers"), "missing attribute 'weathers' in shop; did you mean 'weather'?"),
        (("worker", "shop"), "expected module:object, for example weather:agent"),
        (("worker", "shop:AGENTS", "--db", "postgresql://localhost/app"), "missing attribute 'AGENTS' in shop"),
        (("worker", "shop:runtime", "--tenant-limit", "3"), "use PostgresQueue(tenant_limit=...)"),
        (
            ("worker", "shop:runtime", "--concurrency", "32"),
            "--concurrency cannot be used with the Runtime 'shop:runtime'",
        ),
        (("worker", "shop:runtime", "--program-version", "3"), "use Runtime(version=...)"),
        (
            ("worker", "shop:runtime", "--dsn", "postgresql://localhost/app"),
            "--db cannot be used with the Runtime 'shop:runtime'",
        ),
        (
            ("worker", "shop:weather", "--metrics-port", "0", "--metrics-host", "0.0.0.0"),
            "--metrics-host 0.0.0.0 is public and requires a key; set RXLOOP_KEYS=metrics=KEY",
        ),
        (("serve", "shop:weather", "--queue", "--db", "runs.db", "--port", "0"), "a queue requires a Postgres"),
        (("serve", "shop:weather", "--program-version", "3", "--port", "0"), "requires --queue"),
        (("serve", "shop:weather", "--session-db", "postgresql://localhost/app", "--port", "0"), "requires --queue"),
    ],
)
def test_invalid_worker_is_reported(workspace: Workspace, arguments: Sequence[str], what: str) -> None:
    (workspace.folder / "shop.py").write_text(AGENTS + RUNTIME, encoding="utf-8")
    result = workspace.run(*arguments, code=2)
    assert what in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_command_names_the_missing_queue_package(workspace: Workspace, command: str) -> None:
    (workspace.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    code = "import sys; sys.modules['procrastinate'] = None; from rxloop.cli import main; main()"
    options = ["--db", "postgresql://localhost/app", *(["--queue", "--port", "0"] if command == "serve" else [])]
    done = subprocess.run(
        [sys.executable, "-c", code, command, "shop:weather", *options],
        env={**os.environ, **workspace.env},
        cwd=workspace.folder,
        capture_output=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "rxloop: PostgresQueue requires procrastinate, which is not installed; pip install 'rxloop[postgres]'"
    ]
