"""Pytest plugin for hanging tests. See timeout_plugin.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SWALLOWS = """
import time
def test_it():
    try: time.sleep(600)
    except BaseException: pass
    time.sleep(600)
"""
NEVER_ENDS = """
import pytest, time
@pytest.fixture
def slow():
    yield
    time.sleep(600)
def test_it(slow): assert not "this"
"""


@pytest.mark.parametrize("source", [SWALLOWS, NEVER_ENDS], ids=["swallows its time-out", "fails, then never ends"])
def test_hanging_test_is_ended(source: str, tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(source + "def test_behind_it(): pass\n")
    (tmp_path / "conftest.py").write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom support import timeout_plugin\n"
        "timeout_plugin._AGAIN = 0.5\npytest_plugins = ['support.timeout_plugin']\n"
    )
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=1"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Failed: Timeout" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
