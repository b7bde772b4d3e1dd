"""The table of the nine strategies as the specification has it, which is no part of this repository.

It is looked for in a folder `shared` beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

_FILE = Path(__file__).parents[3] / "shared" / "spec" / "strategies.json"
needs_table = pytest.mark.skipif(
    not _FILE.is_file(), reason="the table is not in ../shared/spec/strategies.json, beside this repository"
)

TABLE: dict[str, Any] = orjson.loads(_FILE.read_bytes()) if _FILE.is_file() else {}
EXPECTED: dict[str, dict[str, Any]] = {each["id"]: each for each in TABLE.get("strategies", ())}
