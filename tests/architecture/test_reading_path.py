"""Size of the files on the reading path from a prompt to an answer."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = [
    "agents/agent.py",
    "run/handle.py",
    "run/lifecycle.py",
    "run/startup.py",
    "run/recorder.py",
    "pipeline/requests.py",
    "operators/loop/iterate.py",
    "operators/loop/answer_requests.py",
    "operators/loop/call_model.py",
    "operators/loop/run_tools.py",
    "state/fold.py",
    "stream/hub.py",
]
MAX_LINES = 2_750


def test_reading_path_stays_below_the_limit() -> None:
    lines = {name: len((ROOT / "src/rxloop" / name).read_text(encoding="utf-8").splitlines()) for name in PATH}
    assert sum(lines.values()) <= MAX_LINES, lines


def test_design_page_lists_the_reading_path_in_order() -> None:
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    section = page.partition("## Reading path: from a prompt to an answer")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE) == PATH
