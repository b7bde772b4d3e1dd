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

from commands import Place
from terminals import LIMIT

AGENTS = """
from rxloop import Agent
from rxloop.testing import demo_model

weather = Agent(demo_model(), name="weather")
"""


@contextmanager
def started(place: Place, *arguments: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rxloop", *arguments, "--json"]
    environment = {**os.environ, **place.env}
    process = subprocess.Popen(
        command, cwd=place.folder, env=environment, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
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
def test_a_worker_carries_out_what_a_server_with_a_queue_starts(place: Place, postgres_database: str) -> None:
    (place.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    where = ("shop:weather", "--db", postgres_database)
    with (
        started(place, "serve", *where, "--queue", "--port", "0") as server,
        started(place, "worker", *where, "--concurrency", "2") as worker,
    ):
        url = orjson.loads(said(server.stderr, "serving"))["url"]
        said(worker.stderr, "working on weather")
        with httpx.Client(base_url=url, timeout=30) as client:
            run = client.post("/runs?wait=20", json={"input": "Weather in Oslo?"}).json()
            assert run["state"] == "completed", run
            frames = client.get(f"/runs/{run['taskId']}/events").text
            assert "content-complete" in frames
        worker.send_signal(signal.SIGTERM)
        said(worker.stderr, "stopped")
        assert worker.wait(20) == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("worker", "shop:weather"), "a queue needs a Postgres"),
        (("worker", "shop:weather", "--db", "runs.db"), "a queue needs a Postgres"),
        (("worker", "shop:AGENTS", "--db", "postgresql://localhost/app"), "has no 'AGENTS'"),
        (("serve", "shop:weather", "--queue", "--db", "runs.db", "--port", "0"), "a queue needs a Postgres"),
        (("serve", "shop:weather", "--tenant-limit", "3", "--port", "0"), "add --queue"),
    ],
)
def test_what_cannot_work_is_told_in_a_sentence(place: Place, arguments: Sequence[str], what: str) -> None:
    (place.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    result = place.run(*arguments, code=2)
    assert what in result.stderr
