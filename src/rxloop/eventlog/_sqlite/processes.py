"""Whether a process of this machine has died: its kernel knows that at once."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple


class _Listed(NamedTuple):
    """What the system says of a process."""

    state: str
    started: str
    """When it was started, so that a later process with the same number is told from it."""


def this_process() -> str:
    """Name this process as no other one is named, before or after it; empty where the system gives no such name."""
    machine, pid = _machine(), os.getpid()
    listed = _listed(pid)
    return f"{machine} {pid} {listed.started if listed else '?'}" if machine else ""


def has_died(process: str) -> bool:
    """Tell whether a process has certainly died. One that cannot be seen from here, as in another container, has not.

    Args:
        process: What `this_process` gave there.
    """
    match process.split():
        case [machine, number, started] if machine == _machine():
            pid = int(number)
        case _:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # It is another user's, and there.
        pass
    listed = _listed(pid)
    # What has ended is listed until its parent has asked for it.
    return listed is not None and (listed.state in ("Z", "X") or listed.started != started)


@cache
def _machine() -> str:
    """Name what the numbers of processes are valid in: the machine since its start, and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"mac.{os.uname().nodename}" if sys.platform == "darwin" else ""


def _listed(pid: int) -> _Listed | None:
    try:
        # The name of the program may have spaces and brackets in it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _Listed(fields[0], fields[19])
    except (OSError, IndexError):
        return None
