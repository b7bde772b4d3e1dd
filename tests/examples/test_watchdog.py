"""What the example of a watchdog prints."""

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


def test_the_dog_ends_a_circle_and_leaves_a_model_that_is_silent(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with virtual_time() as time:
        time.run(example.main())
    circle, silence = capsys.readouterr().out.split("A model that falls silent:\n")
    assert circle.count("  tool  search(dragon)") == 2
    assert "  dog   search(query='dragon') was asked for 3 times: it is over" in circle
    # The call was not made a third time, and the search for the kite not a second time.
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
