"""Whether a process has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rxloop.storage.sqlite import leases as processes
from rxloop.storage.sqlite.leases import has_died, this_process

NAME = "from rxloop.storage.sqlite.leases import this_process; print(this_process(), flush=True); input()"

LISTED = Path("/proc/self/stat").exists()

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there, nobody can tell")


def child() -> tuple[subprocess.Popen[str], str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", NAME], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_process_is_alive_until_it_is_killed() -> None:
    process, name = child()
    assert not has_died(this_process())
    assert not has_died(name)
    end(process)
    assert has_died(name)
    assert not has_died(this_process())


def test_a_frozen_process_is_alive() -> None:
    process, name = child()
    process.send_signal(signal.SIGSTOP)
    assert not has_died(name)
    end(process)


@pytest.mark.skipif(not LISTED, reason="this system does not say")
def test_a_process_whose_parent_has_not_asked_for_it_yet_has_died() -> None:
    process, name = child()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_died(name)
    end(process)


@pytest.mark.skipif(not LISTED, reason="this system does not say")
def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it() -> None:
    machine, pid, started = this_process().split()
    assert has_died(f"{machine} {pid} {int(started) - 1}")


def test_a_process_of_another_machine_or_container_is_never_taken_for_dead() -> None:
    process, name = child()
    end(process)
    _, rest = name.split(" ", 1)
    assert not has_died(f"elsewhere {rest}")
    assert not has_died("")


def test_where_the_system_gives_no_name_nobody_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    process, name = child()
    end(process)
    monkeypatch.setattr(processes, "_machine", lambda: "")
    assert this_process() == ""
    assert not has_died(name)
