"""Output of the watchdog example."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from rxloop.testing import virtual_time

PATH = Path(__file__).parents[2] / "examples/watchdog.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("watchdog", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_watchdog_ends_a_loop_and_replaces_a_silent_model(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with virtual_time() as time:
        time.run(example.main())
    circle, silence = capsys.readouterr().out.split("Silent model:\n")
    assert circle.count("  tool  search(dragon)") == 2
    assert "  dog   search(query='dragon') was asked for 3 times; run cancelled" in circle
    # There is no third call, and no second search for the kite.
    assert re.findall(r"^  (\w+) +([\w.]+)", silence, re.MULTILINE) == [
        ("model", "sleepy"),
        ("tool", "search"),
        ("model", "sleepy"),
        ("stats", "0.3"),
        ("dog", "nothing"),
        ("model", "spare"),
        ("stats", "0.0"),
        ("answer", "The"),
    ]
    assert silence.endswith("answer The cheapest kite is 19 EUR.\n")
