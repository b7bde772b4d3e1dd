"""Strategy table of the specification, which is not part of this repository.

The table is read from a folder `shared` next to the checkout.
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
