"""The processes of a play: none is left over, none is lost unseen, and none shows what it was told."""

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
from rxloop.testing.chaos.processes import _bytecode
from support.postgres.server import database
from support.processes.bound_processes import process_state

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(120)]


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, and have to be gone at the end."""
    _bytecode()  # That stays for the next test.
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def workers_of_mine() -> dict[int, str]:
    """The command lines of the workers that this process has, by their ids."""
    found: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            command = (place / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and "rxloop.testing.chaos.worker" in command:
            found[int(place.name)] = command
    return found


def sessions(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("fault", ["freeze_every", "kill_every", "stop_every"])
async def test_a_play_that_is_cancelled_leaves_no_process(dsn: str, fault: str, folder: Path) -> None:
    hit, every = asyncio.Event(), dict[str, Any]({"kill_every": None, "freeze_every": None, fault: 0.4})

    async def play() -> None:
        async with Chaos("support.workers.clerk:clerk", dsn, workers=3, lease=30, grace=30) as chaos:
            assert len(workers_of_mine()) == 3
            playing = asyncio.create_task(chaos.play("Go", runs=10, seconds=60, **every))
            # One is frozen for longer than this test, stops for as long, or is being started.
            while not any(worker.busy for worker in chaos.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            hit.set()
            await playing

    whole = asyncio.create_task(play())
    await hit.wait()
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert not workers_of_mine()
    assert not [*folder.iterdir()]


PLAY = """
import asyncio, signal, sys
from rxloop.testing.chaos import Chaos

async def main():
    async with Chaos("support.workers.clerk:clerk", sys.argv[1], workers=2) as chaos:
        chaos.workers[0].send(signal.SIGSTOP)
        print(*(worker.pid for worker in chaos.workers), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_workers_whose_play_is_killed_end_by_themselves_frozen_or_not(dsn: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    play = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PLAY, dsn),
        stdout=asyncio.subprocess.PIPE,
        env={**environment, "TMPDIR": str(folder)},
    )
    assert play.stdout is not None
    workers = [int(pid) for pid in (await play.stdout.readline()).split()]
    try:
        async with asyncio.timeout(20):
            while process_state(workers[0]) != "T":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            play.kill()
            await play.wait()
            while any(map(process_state, workers)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        for left in filter(process_state, workers):
            os.kill(left, signal.SIGKILL)


async def test_nobody_sees_the_address_among_the_processes(dsn: str) -> None:
    secret = dsn.replace("postgres@", "postgres:pass-of-mine@")
    async with Chaos("support.workers.clerk:clerk", secret, workers=2):
        for pid, command in workers_of_mine().items():
            assert "pass-of-mine" not in command
            assert b"pass-of-mine" not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_database_that_is_not_there_leaves_nothing_behind(dsn: str, folder: Path) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(EventLogError):
        async with Chaos("support.workers.clerk:clerk", f"{dsn}_not"):
            pass
    assert not [*folder.iterdir()]
    assert not workers_of_mine()
    assert asyncio.all_tasks() == before


async def test_workers_that_do_not_start_leave_nothing_behind(dsn: str, folder: Path) -> None:
    chaos = Chaos("support.workers.clerk:clerk", dsn, deps="support.workers.clerk:nothing")
    with pytest.raises(RxloopError, match="a worker does not start"):
        async with chaos:
            pass
    assert not [*folder.iterdir()]
    assert not workers_of_mine()
    # The server sees a moment later that a client is gone.
    async with asyncio.timeout(10):
        while sessions(dsn):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_worker_that_does_not_start_again_is_wrong(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn, workers=3) as chaos:
        broken = chaos.workers[0]

        async def kill_for_good(worker: Worker) -> None:
            broken._orders = b"{}\n"
            await broken.kill()

        fault = Fault("kill", 0.2, kill_for_good)
        report = await chaos.play(
            "Go", runs=2, seconds=2, kill_every=None, freeze_every=None, faults=[fault], cancelled=0
        )
        assert report.kinds["worker"] >= 1
        with pytest.raises(AssertionError, match="worker: a worker is gone, and did not start again"):
            report.check()


async def test_a_worker_that_ends_by_itself_is_wrong_and_is_started_again(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn, workers=2) as chaos:
        os.kill(chaos.workers[1].pid, signal.SIGKILL)
        await chaos.workers[1].wait()
        # Before the play that is nobody's fault, and in it, it is.
        quiet: dict[str, Any] = {"runs": 2, "seconds": 1, "kill_every": None, "freeze_every": None, "cancelled": 0}
        (await chaos.play("Go", **quiet)).check()
        assert chaos.workers[1].alive
        playing = asyncio.create_task(chaos.play("Go", **quiet))
        await asyncio.sleep(0)
        os.kill(chaos.workers[0].pid, signal.SIGKILL)
        report = await playing
        assert [str(wrong) for wrong in report.wrong] == ["worker: a worker ended by itself, with -9"]
        assert chaos.workers[0].alive


async def test_faults_of_ones_own_are_counted_and_those_that_find_nobody_idle_as_well(dsn: str) -> None:
    async def hiccup(worker: Worker) -> None:
        worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(0.3)
        finally:
            worker.send(signal.SIGCONT)

    async with Chaos("support.workers.clerk:clerk", dsn, workers=2) as chaos:
        report = await chaos.play(
            "Go", runs=4, seconds=3, kill_every=None, freeze_every=None, faults=[Fault("hiccup", 0.1, hiccup)]
        )
    report.check()
    assert report.faults["hiccup"] >= 3
    assert report.skipped["hiccup"] >= 3
    assert "hiccup left out" in str(report)


async def test_what_was_judged_is_removed_and_what_is_wrong_is_kept(dsn: str) -> None:
    calm: dict[str, Any] = {
        "runs": 4,
        "seconds": 1,
        "kill_every": None,
        "freeze_every": None,
        "cancelled": 0,
        "paired": 0,
    }
    async with Chaos("support.workers.clerk:clerk", dsn, workers=2) as chaos:
        (await chaos.play("Go", **calm)).check()
        assert not await chaos.runtime.log.list_runs()
        assert (await chaos.play("Go", expect="Nothing.", **calm)).kinds["output"] == 4
        assert len(await chaos.runtime.log.list_runs()) == 4
