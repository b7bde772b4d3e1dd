"""Type check of the Python blocks in documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/document_types.py"
PAGE = """# Page

```python
async def double(number: int) -> int:
    return 2 * number
```

Text.

* List
  ```python
  four = await double(2)
  four + 1
  word: str = four
  ```

```python
def double(text: str) -> str:
    return text + text
```
"""


def test_both_checkers_report_errors_with_the_line_of_the_document(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    ended = subprocess.run([sys.executable, SCRIPT, page], capture_output=True, text=True, check=False, timeout=100)
    errors = [line for line in ended.stdout.splitlines() if line.startswith(str(tmp_path))]
    assert [error.partition(": ")[0] for error in errors] == [f"{page}:14"] * 2, ended.stdout + ended.stderr
    assert "(mypy)" in ended.stdout
    assert "(reportAssignmentType)" in ended.stdout
    assert ended.returncode == 1
