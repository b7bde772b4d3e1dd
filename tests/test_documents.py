"""Execution of documents and examples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.run_document import iter_blocks

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src/rxloop/skill").rglob("*.md")),
]
EXAMPLES = sorted({ROOT / "examples/kitchen_sink.py", *(ROOT / "examples").glob("*.py")})
RUNNER = ROOT / "tests/support/run_document.py"


def format_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run(*arguments: str | Path, cwd: Path) -> str:
    """Run Python without API keys and network access, and return its output."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(cwd),
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUTF8": "1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    # Errors in tasks and destructors do not change the exit code.
    assert "Traceback" not in done.stderr, output
    assert "Warning:" not in done.stderr, output
    return done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=format_path)
def test_python_blocks_of_a_document_run(document: Path, tmp_path: Path) -> None:
    run(RUNNER, document, cwd=tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=format_path)
def test_python_blocks_of_a_document_have_no_exceptions(document: Path) -> None:
    blocks = iter_blocks(document.read_text(encoding="utf-8"))
    name = document.stem.removeprefix("from_").replace("_", "-")
    titles = ["rxloop", name] if document.stem.startswith("from_") else []
    allowed = ["python", *(f'python title="{title}"' for title in titles)]
    assert [f"line {line}: {info}" for line, info, _ in blocks if info not in allowed] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=format_path)
def test_example_runs_without_keys_and_network(example: Path, tmp_path: Path) -> None:
    assert run(example, cwd=tmp_path)


def test_blocks_of_a_document_share_a_namespace_and_can_await(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        """
```python
import asyncio
n = 1
```
```bash
exit 1
```
````markdown
```python
raise SystemExit("a block in a block is text")
```
````
<!--
```python
hidden = 40
```
-->
* in a list
  ```python
  n += await asyncio.sleep(0, hidden)
  async def test_this() -> None:
      print(await asyncio.sleep(0, n + 1))
  ```
""",
        encoding="utf-8",
    )
    assert run(RUNNER, document, cwd=tmp_path) == "42\n"


def test_failing_block_is_reported_with_its_line(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("# Title\n\n```python\na = 1\nraise LookupError(a)\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r'document\.md", line 5'):
        run(RUNNER, document, cwd=tmp_path)
