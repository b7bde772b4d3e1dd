"""Cluster demonstration script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/cluster.py"


@pytest.mark.service("postgres")
@pytest.mark.timeout(300)
@pytest.mark.skipif("RXLOOP_CHAOS_KILLS" not in os.environ, reason="slow: set RXLOOP_CHAOS_KILLS")
def test_cluster_loses_no_run_while_its_processes_are_killed() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "15", "--kill-every", "4", "--every", "1"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "worker 3" in process.stdout
