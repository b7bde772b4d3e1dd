"""Tests for starting, monitoring and stopping worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rxloop.errors import EventLogError, RxloopError
from rxloop.testing.chaos import Chaos, Fault, Worker
from rxloop.testing.chaos.processes import _create_bytecode_folder
from support.postgres.server import database
from support.processes.bound_processes import process_state

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(120)]


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for temporary files."""
    _create_bytecode_folder()  # Create it outside the temporary folder.
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def list_workers() -> dict[int, str]:
    """Return the command lines of all child workers, by process id."""
    commands: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            command = (place / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and "rxloop.testing.chaos.worker" in command:
            commands[int(place.name)] = command
    return commands


def count_sessions(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("fault", ["freeze_every", "kill_every", "stop_every"])
async def test_cancelled_scenario_leaves_no_process(dsn: str, fault: str, folder: Path) -> None:
    busy, every = asyncio.Event(), dict[str, Any]({"kill_every": None, "freeze_every": None, fault: 0.4})

    async def run_scenario() -> None:
        async with Chaos("support.workers.clerk:clerk", dsn, workers=3, lease=30, grace=30) as chaos:
            assert len(list_workers()) == 3
            scenario = asyncio.create_task(chaos.run_scenario("Go", runs=10, seconds=60, **every))
            # A worker is frozen or stopping for longer than this test, or is being started.
            while not any(worker.busy for worker in chaos.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            busy.set()
            await scenario

    task = asyncio.create_task(run_scenario())
    await busy.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list_workers()
    assert not [*folder.iterdir()]


PROGRAM = """
import asyncio, signal, sys
from rxloop.testing.chaos import Chaos

async def main():
    async with Chaos("support.workers.clerk:clerk", sys.argv[1], workers=2) as chaos:
        chaos.workers[0].send(signal.SIGSTOP)
        print(*(worker.pid for worker in chaos.workers), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_workers_exit_when_their_parent_is_killed(dsn: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, dsn),
        stdout=asyncio.subprocess.PIPE,
        env={**environment, "TMPDIR": str(folder)},
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in (await parent.stdout.readline()).split()]
    try:
        async with asyncio.timeout(20):
            while process_state(workers[0]) != "T":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            parent.kill()
            await parent.wait()
            while any(map(process_state, workers)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        for pid in filter(process_state, workers):
            os.kill(pid, signal.SIGKILL)


async def test_database_url_is_not_visible_in_the_process_list(dsn: str) -> None:
    secret = dsn.replace("postgres@", "postgres:pass-of-mine@")
    async with Chaos("support.workers.clerk:clerk", secret, workers=2):
        for pid, command in list_workers().items():
            assert "pass-of-mine" not in command
            assert b"pass-of-mine" not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_missing_database_leaves_no_processes_or_files(dsn: str, folder: Path) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(EventLogError):
        async with Chaos("support.workers.clerk:clerk", f"{dsn}_not"):
            pass
    assert not [*folder.iterdir()]
    assert not list_workers()
    assert asyncio.all_tasks() == before


async def test_workers_that_fail_to_start_leave_no_processes_or_files(dsn: str, folder: Path) -> None:
    chaos = Chaos("support.workers.clerk:clerk", dsn, deps="support.workers.clerk:nothing")
    with pytest.raises(RxloopError, match="a worker did not start"):
        async with chaos:
            pass
    assert not [*folder.iterdir()]
    assert not list_workers()
    # The server notices closed connections with a delay.
    async with asyncio.timeout(10):
        while count_sessions(dsn):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_worker_that_does_not_restart_is_reported(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn, workers=3) as chaos:
        broken = chaos.workers[0]

        async def kill_for_good(worker: Worker) -> None:
            broken._settings = b"{}\n"
            await broken.kill()

        fault = Fault("kill", 0.2, kill_for_good)
        report = await chaos.run_scenario(
            "Go", runs=2, seconds=2, kill_every=None, freeze_every=None, faults=[fault], cancel_fraction=0
        )
        assert report.kinds["worker"] >= 1
        with pytest.raises(AssertionError, match="worker: a worker did not restart"):
            report.check()


async def test_worker_that_exits_unexpectedly_is_reported_and_restarted(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn, workers=2) as chaos:
        os.kill(chaos.workers[1].pid, signal.SIGKILL)
        await chaos.workers[1].wait()
        # Only exits during a scenario are violations.
        quiet: dict[str, Any] = {
            "runs": 2,
            "seconds": 1,
            "kill_every": None,
            "freeze_every": None,
            "cancel_fraction": 0,
        }
        (await chaos.run_scenario("Go", **quiet)).check()
        assert chaos.workers[1].alive
        scenario = asyncio.create_task(chaos.run_scenario("Go", **quiet))
        await asyncio.sleep(0)
        os.kill(chaos.workers[0].pid, signal.SIGKILL)
        report = await scenario
        assert [str(violation) for violation in report.violations] == [
            "worker: a worker exited unexpectedly with code -9"
        ]
        assert chaos.workers[0].alive


async def test_custom_faults_and_skipped_faults_are_counted(dsn: str) -> None:
    async def hiccup(worker: Worker) -> None:
        worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(0.3)
        finally:
            worker.send(signal.SIGCONT)

    async with Chaos("support.workers.clerk:clerk", dsn, workers=2) as chaos:
        report = await chaos.run_scenario(
            "Go", runs=4, seconds=3, kill_every=None, freeze_every=None, faults=[Fault("hiccup", 0.1, hiccup)]
        )
    report.check()
    assert report.faults["hiccup"] >= 3
    assert report.skipped["hiccup"] >= 3
    assert "hiccup skipped" in str(report)


async def test_checked_runs_are_deleted_unless_there_are_violations(dsn: str) -> None:
    calm: dict[str, Any] = {
        "runs": 4,
        "seconds": 1,
        "kill_every": None,
        "freeze_every": None,
        "cancel_fraction": 0,
        "follow_up_fraction": 0,
    }
    async with Chaos("support.workers.clerk:clerk", dsn, workers=2) as chaos:
        (await chaos.run_scenario("Go", **calm)).check()
        assert not await chaos.runtime.log.list_runs()
        assert (await chaos.run_scenario("Go", expect="Nothing.", **calm)).kinds["output"] == 4
        assert len(await chaos.runtime.log.list_runs()) == 4
