"""Commands `view` and `demo --view`, which serve the viewer."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

import httpx
import pytest

from support.cli_workspace import Workspace
from support.terminals import LIMIT


@contextmanager
def start_viewer(workspace: Workspace, *arguments: str) -> Generator[str]:
    """Start a command that serves the viewer, and yield the address that it prints."""
    command = (*arguments, "--port", "0", "--no-open")
    process = workspace.process(*command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    output: IO[bytes] | None = process.stdout
    assert output is not None
    try:
        line = output.readline().decode()
        assert line.startswith("Viewer at http://127.0.0.1:"), (line, process.communicate(timeout=LIMIT))
        yield line.removeprefix("Viewer at ").strip()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_view_serves_the_runs_of_a_database_without_changing_them(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    with start_viewer(workspace, "view") as address, httpx.Client(base_url=address) as client:
        assert "<title>rxloop</title>" in client.get("").text
        assert client.get("..").headers["location"] == "view/"
        runs = client.get("../runs").json()["runs"]
        assert [run["state"] for run in runs] == ["completed"]
        access = client.get("../me").json()
        assert (access["may"]["act"], access["may"]["internal"], access["agents"]) == (False, True, False)
        assert client.post(f"../runs/{runs[0]['taskId']}/cancel", json={}).status_code == 403


def test_view_reports_a_missing_database(workspace: Workspace) -> None:
    assert "no database at" in workspace.run("view", "--db", "missing.db", "--no-open", code=1).stderr


def test_demo_shows_its_run_in_the_viewer(workspace: Workspace) -> None:
    with start_viewer(workspace, "demo", "How warm is it in Rome?", "--view") as address:
        page, _, task_id = address.partition("#/r/")
        with httpx.Client(base_url=page, timeout=LIMIT) as client:
            # The run must not be over before the browser has loaded the page.
            assert client.get("").status_code == 200
            assert client.get("../contexts").json()["contexts"] == []
            run = client.get(f"../runs/{task_id}", params={"wait": 30}).json()
            first = client.get(f"../runs/{task_id}/events", params={"from": 1, "to": 1}).text
            fork = client.post(f"../runs/{task_id}/fork", json={"at": 1})
            assert fork.status_code == 202, fork.text
            lines = client.get(
                f"../runs/{task_id}/events", headers={"accept": "application/x-ndjson"}
            ).text.splitlines()
            events = map(json.loads, lines)
            [seq] = [
                each["seq"]
                for each in events
                if each["kind"] == "tool-complete" and each["call"]["name"] == "get_weather"
            ]
            changed = {"at": seq, "results": {"1/1": {"temperature": -2.0, "unit": "C", "sky": "snow"}}}
            replaced = client.post(f"../runs/{task_id}/fork", json=changed)
            assert replaced.status_code == 202, replaced.text
    assert run["state"] == "completed"
    assert "How warm is it in Rome?" in first


@pytest.mark.parametrize("command", ["view", "demo --view"])
def test_occupied_port_is_reported(workspace: Workspace, command: str) -> None:
    workspace.run("run", "2 + 2")
    with start_viewer(workspace, "view") as address:
        port = str(httpx.URL(address).port)
        result = workspace.run(*command.split(), "--port", port, "--no-open", code=2)
    expected = (
        f"cannot listen on 127.0.0.1, port {port}: Address already in use; select another port, or 0 for a free one"
    )
    assert expected in " ".join(result.stderr.split())
