"""Detection of dead processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rxloop.storage.sqlite import leases as processes
from rxloop.storage.sqlite.leases import get_process_name, has_died

NAME = "from rxloop.storage.sqlite.leases import get_process_name; print(get_process_name(), flush=True); input()"

IS_LINUX = Path("/proc/self/stat").exists()

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="dead processes cannot be detected on Windows")


def start_child() -> tuple[subprocess.Popen[str], str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", NAME], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_process_is_alive_until_it_is_killed() -> None:
    process, name = start_child()
    assert not has_died(get_process_name())
    assert not has_died(name)
    kill(process)
    assert has_died(name)
    assert not has_died(get_process_name())


def test_frozen_process_is_alive() -> None:
    process, name = start_child()
    process.send_signal(signal.SIGSTOP)
    assert not has_died(name)
    kill(process)


@pytest.mark.skipif(not IS_LINUX, reason="this system does not say")
def test_zombie_process_has_died() -> None:
    process, name = start_child()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_died(name)
    kill(process)


@pytest.mark.skipif(not IS_LINUX, reason="this system does not say")
def test_process_that_reuses_a_number_is_another_process() -> None:
    machine, pid, started = get_process_name().split()
    assert has_died(f"{machine} {pid} {int(started) - 1}")


def test_process_of_another_machine_or_container_never_counts_as_dead() -> None:
    process, name = start_child()
    kill(process)
    _, remainder = name.split(" ", 1)
    assert not has_died(f"elsewhere {remainder}")
    assert not has_died("")


def test_no_process_counts_as_dead_without_a_machine_name(monkeypatch: pytest.MonkeyPatch) -> None:
    process, name = start_child()
    kill(process)
    monkeypatch.setattr(processes, "_get_machine", lambda: "")
    assert get_process_name() == ""
    assert not has_died(name)
