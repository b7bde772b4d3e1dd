"""Processes started by tests end with the test process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from support.processes import bound_processes
from support.processes.bound_processes import process_state

pytestmark = pytest.mark.skipif(not bound_processes.PREFIX, reason="setpriv is not installed (Debian: util-linux)")

STARTER = """
import asyncio, signal, subprocess
from support.processes.bound_processes import start_process

command = ["sh", "-c", "echo bound; exec sleep 600"]

async def main():
    first = await asyncio.to_thread(start_process, command, stdout=subprocess.PIPE)
    second = start_process(command, stdout=subprocess.PIPE)
    return first, second

# Its threads are over by then.
processes = asyncio.run(main())
for process in processes:
    assert process.stdout.readline().strip() == b"bound"
processes[1].send_signal(signal.SIGSTOP)
print(*(process.pid for process in processes), *(process.poll() for process in processes), flush=True)
signal.pause()
"""


async def test_processes_of_a_test_end_when_it_is_killed_even_if_they_are_frozen() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent
    )
    assert process.stdout is not None
    *pids, first, second = (await process.stdout.readline()).split()
    assert (first, second) == (b"None", b"None"), "they outlive the thread and the event loop"
    left = [int(pid) for pid in pids]
    try:
        assert all(map(process_state, left))
        process.kill()
        await process.wait()
        async with asyncio.timeout(20):
            while any(map(process_state, left)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        for pid in filter(process_state, left):
            os.kill(pid, signal.SIGKILL)
