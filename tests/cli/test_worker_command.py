"""`rxloop worker` and `rxloop serve --queue`: one process starts runs, and another one carries them out."""

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
runtime = Runtime({"weather": weather}, log=PostgresEventLog(DSN), queue=PostgresQueue(DSN), works=True)
"""


@contextmanager
def started(workspace: Workspace, *arguments: str) -> Generator[subprocess.Popen[str]]:
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


def said(stream: IO[str] | None, words: str) -> str:
    """The line of the log that has these words."""
    assert stream is not None
    seen: list[str] = []
    for line in stream:
        seen.append(line)
        if words in line:
            return line
    raise AssertionError("".join(seen))


@pytest.mark.service("postgres")
@pytest.mark.timeout(LIMIT * 3)
def test_a_worker_carries_out_what_a_server_with_a_queue_starts(workspace: Workspace, postgres_database: str) -> None:
    (workspace.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    where = ("shop:weather", "--db", postgres_database)
    with (
        started(workspace, "serve", *where, "--queue", "--port", "0") as server,
        started(workspace, "worker", *where, "--concurrency", "2") as worker,
    ):
        serving = orjson.loads(said(server.stderr, "serving"))
        assert serving["message"].endswith(", which workers carry out")
        url = serving["url"]
        said(worker.stderr, "working on weather")
        with httpx.Client(base_url=url, timeout=30) as client:
            run = client.post("/runs?wait=20", json={"input": "Weather in Oslo?"}).json()
            assert run["state"] == "completed", run
            frames = client.get(f"/runs/{run['taskId']}/events").text
            assert "content-complete" in frames
            # How many objects of it the worker's garbage collector passes over.
            assert int(run["content"]) > 10_000, run
        worker.send_signal(signal.SIGTERM)
        said(worker.stderr, "stopped")
        assert worker.wait(20) == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("worker", "shop:weather"), "a queue needs a Postgres"),
        (("worker", "shop:weather", "--db", "runs.db"), "and 'runs.db' is none"),
        (("worker", "shop:weather", "--db", "postgresq://ann:s3cret@db/app"), "and 'postgresq://' is none"),
        (("worker", "shop:weather", "--db", "host=db user=ann password=s3cret"), "and '...' is none"),
        (("worker", "shop:weather", "--db", "ann:s3cret@db/app"), "and '...' is none"),
        (("worker", "shop:weathers"), "shop has no 'weathers'; did you mean 'weather'?"),
        (("worker", "shop"), "write module:object, such as weather:agent"),
        (("worker", "shop:AGENTS", "--db", "postgresql://localhost/app"), "has no 'AGENTS'"),
        (("worker", "shop:runtime", "--tenant-limit", "3"), "as PostgresQueue(tenant_limit=...)"),
        (("worker", "shop:runtime", "--concurrency", "32"), "--concurrency does not go with 'shop:runtime'"),
        (("worker", "shop:runtime", "--program-version", "3"), "as Runtime(version=...)"),
        (("worker", "shop:runtime", "--dsn", "postgresql://localhost/app"), "--db does not go with 'shop:runtime'"),
        (("serve", "shop:weather", "--queue", "--db", "runs.db", "--port", "0"), "a queue needs a Postgres"),
        (("serve", "shop:weather", "--program-version", "3", "--port", "0"), "add --queue"),
        (("serve", "shop:weather", "--session-db", "postgresql://localhost/app", "--port", "0"), "add --queue"),
    ],
)
def test_what_cannot_work_is_told_in_a_sentence(workspace: Workspace, arguments: Sequence[str], what: str) -> None:
    (workspace.folder / "shop.py").write_text(AGENTS + RUNTIME, encoding="utf-8")
    result = workspace.run(*arguments, code=2)
    assert what in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_without_the_library_of_the_queue_the_command_ends_and_names_the_extra(
    workspace: Workspace, command: str
) -> None:
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
        "rxloop: a queue in Postgres needs procrastinate, which is not installed: pip install 'rxloop[postgres]'"
    ]
