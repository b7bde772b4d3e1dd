"""Processes that end with the process that has started them, though this one is killed, and they are frozen."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_SETPRIV = shutil.which("setpriv")
BOUND = (_SETPRIV, "--pdeathsig", "KILL", "--") if _SETPRIV else ()
"""What comes before a command, on Linux. It counts when the thread ends that has started it: take one that lasts."""
_starting = ThreadPoolExecutor(1, "starts-processes")
"""A thread that lasts as long as this process."""


def started(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process from any thread, as `subprocess.Popen` does."""
    return _starting.submit(subprocess.Popen[bytes], [*BOUND, *command], **options).result()


def state_of(pid: int) -> str:
    """The letter of the state of a process; none if it is gone, though nobody may have buried it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].strip("ZX")
    except (FileNotFoundError, ProcessLookupError):
        return ""
