"""The tables and the schema of the event protocol are those of the models."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rxloop.protocol import protocol_schema

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/protocol.py"


def kinds() -> list[str]:
    return list(protocol_schema()["discriminator"]["mapping"])


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("protocol_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(script: Path) -> tuple[int, str]:
    command = [sys.executable, script, "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    return done.returncode, done.stderr


def copied(tmp_path: Path) -> Path:
    """A copy of the script with its documents, in the same places to each other."""
    for path in (SCRIPT, ROOT / "docs/protocol.md", ROOT / "docs/protocol.schema.json"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path / "scripts/protocol.py"


def test_the_document_and_the_schema_are_those_of_the_models(script: Any) -> None:
    stale = [str(path) for path, text in script.documents(ROOT) if (ROOT / path).read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/protocol"


def test_a_table_that_was_changed_by_hand_is_stale(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    assert check(copy) == (0, "")
    page = tmp_path / "docs/protocol.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("A tool is about to be called.", "A tool."), encoding="utf-8"
    )
    assert check(copy) == (1, "docs/protocol.md is stale: run scripts/protocol\n")


def test_prose_around_the_tables_may_be_changed_by_hand(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    page = tmp_path / "docs/protocol.md"
    page.write_text("More.\n" + page.read_text(encoding="utf-8") + "\nAnd more.\n", encoding="utf-8")
    assert check(copy) == (0, "")


def test_a_page_without_the_markers_is_refused(script: Any) -> None:
    with pytest.raises(LookupError, match="'kinds' once, and has them 0 times"):
        script.with_table("# No markers\n", "kinds", "| a |")


def test_every_kind_has_one_line_in_the_table_and_every_field_a_line_of_its_own() -> None:
    schema = json.loads((ROOT / "docs/protocol.schema.json").read_text(encoding="utf-8"))
    assert schema == protocol_schema()
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    for kind in kinds():
        assert page.count(f"\n| `{kind}` |") == 1
        assert page.count(f"\n* `{kind}`, in Python `") == 1
    assert "  * `estimatedInputTokens` integer\n" in page
    assert "  * `relatedTo`? string. The thought or tool call" in page


def test_the_types_of_fields_are_written_short(script: Any) -> None:
    assert script.shape_of({"anyOf": [{"type": "integer"}, {"type": "null"}]}) == "integer"
    assert script.shape_of({"type": "array", "items": {"$ref": "#/$defs/ToolCall"}}) == "ToolCall[]"
    assert script.shape_of({"type": "array", "items": {"enum": ["a", "b"]}}) == '("a" | "b")[]'
    assert script.shape_of({"title": "Value"}) == "any"
