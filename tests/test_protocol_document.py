"""Generated tables and schema of the event protocol."""

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


def list_kinds() -> list[str]:
    return list(protocol_schema()["discriminator"]["mapping"])


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("protocol_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_check(script: Path) -> tuple[int, str]:
    command = [sys.executable, script, "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    return done.returncode, done.stderr


def copy_script(tmp_path: Path) -> Path:
    """Copy the script and its documents, keeping their relative paths."""
    for path in (SCRIPT, ROOT / "docs/protocol.md", ROOT / "docs/protocol.schema.json"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path / "scripts/protocol.py"


def test_document_and_schema_are_up_to_date(script: Any) -> None:
    stale = [
        str(path) for path, text in script.make_documents(ROOT) if (ROOT / path).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run scripts/protocol"


def test_edited_table_is_reported_as_stale(tmp_path: Path) -> None:
    copy = copy_script(tmp_path)
    assert run_check(copy) == (0, "")
    page = tmp_path / "docs/protocol.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("A tool is about to be called.", "A tool."), encoding="utf-8"
    )
    assert run_check(copy) == (1, "docs/protocol.md is stale: run scripts/protocol\n")


def test_edited_prose_is_accepted(tmp_path: Path) -> None:
    copy = copy_script(tmp_path)
    page = tmp_path / "docs/protocol.md"
    page.write_text("More.\n" + page.read_text(encoding="utf-8") + "\nAnd more.\n", encoding="utf-8")
    assert run_check(copy) == (0, "")


def test_page_without_markers_is_rejected(script: Any) -> None:
    with pytest.raises(LookupError, match="'kinds' once, got 0"):
        script.replace_table("# No markers\n", "kinds", "| a |")


def test_every_kind_and_every_field_has_its_own_line() -> None:
    schema = json.loads((ROOT / "docs/protocol.schema.json").read_text(encoding="utf-8"))
    assert schema == protocol_schema()
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    for kind in list_kinds():
        assert page.count(f"\n| `{kind}` |") == 1
        assert page.count(f"\n* `{kind}`, in Python `") == 1
    assert "  * `estimatedInputTokens` integer\n" in page
    assert "  * `relatedTo`? string. The thought or tool call" in page


def test_field_types_are_abbreviated(script: Any) -> None:
    assert script.format_type({"anyOf": [{"type": "integer"}, {"type": "null"}]}) == "integer"
    assert script.format_type({"type": "array", "items": {"$ref": "#/$defs/ToolCall"}}) == "ToolCall[]"
    assert script.format_type({"type": "array", "items": {"enum": ["a", "b"]}}) == '("a" | "b")[]'
    assert script.format_type({"title": "Value"}) == "any"
