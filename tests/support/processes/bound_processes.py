"""Processes that end with their parent, even if the parent is killed while they are frozen."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_SETPRIV = shutil.which("setpriv")
PREFIX = (_SETPRIV, "--pdeathsig", "KILL", "--") if _SETPRIV else ()
"""Command prefix on Linux. The signal is sent when the starting thread ends, so use a permanent thread."""
_starting = ThreadPoolExecutor(1, "starts-processes")
"""Permanent thread that starts processes."""


def start_process(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process from any thread, passing options to `Popen`."""
    return _starting.submit(subprocess.Popen[bytes], [*PREFIX, *command], **options).result()


def process_state(pid: int) -> str:
    """Return the state letter of a process, or an empty string if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].strip("ZX")
    except (FileNotFoundError, ProcessLookupError):
        return ""
