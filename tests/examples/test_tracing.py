"""Output of the tracing example."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "examples/tracing.py"


async def test_tracing_prints_the_spans_of_nested_agents_as_a_tree() -> None:
    spec = importlib.util.spec_from_file_location("tracing", PATH)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    assert [re.sub(r"\d+ ms", "N ms", line) for line in await example.main()] == [
        "invoke_agent editor (N ms)",
        "  chat scripted (N ms)",
        "  execute_tool researcher (N ms)",
        "    invoke_agent researcher (N ms)",
        "      chat scripted (N ms)",
        "      execute_tool look_up (N ms)",
        "      chat scripted (N ms, 4 output tokens)",
        "  chat scripted (N ms, 9 output tokens)",
    ]
