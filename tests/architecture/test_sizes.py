"""Sizes of the files and folders in src/rxloop.

Each set of exceptions equals the set of violations: a new violation fails, and so does an exception that is no longer
needed. So the sets can only shrink.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/rxloop"
TEXTS = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
LINES = {name: len(text.splitlines()) for name, text in TEXTS.items()}

MAX_FILES = 568
MIN_MEDIAN_LINES = 190
MAX_CODE_LINES = 77_500
"""Maximum number of lines, excluding comments, docstrings and blank lines."""

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

LONG_FILES = {"errors.py"}
LARGE_FOLDERS: set[str] = set()
NOT_MODULES = {"__main__.py", "_version.py"}
"""Entry point and version."""


def count_code_lines(text: str) -> int:
    """Count lines that have a token other than comments and docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def test_number_of_files_stays_below_the_limit() -> None:
    assert len(TEXTS) <= MAX_FILES


def test_median_file_is_not_too_short() -> None:
    assert statistics.median(LINES.values()) >= MIN_MEDIAN_LINES


def test_files_have_at_most_400_lines() -> None:
    assert {name for name, count in LINES.items() if count > 400} == LONG_FILES


def test_modules_have_at_least_40_lines() -> None:
    modules = {name: count for name, count in LINES.items() if not name.endswith("__init__.py")}
    assert {name for name, count in modules.items() if count < 40} == NOT_MODULES


def test_folders_have_at_most_20_files() -> None:
    folders = Counter(name.rpartition("/")[0] for name in TEXTS)
    assert {name for name, count in folders.items() if count > 20} == LARGE_FOLDERS


def test_code_stays_below_the_limit() -> None:
    assert sum(map(count_code_lines, TEXTS.values())) <= MAX_CODE_LINES


def test_code_lines_exclude_comments_docstrings_and_blank_lines() -> None:
    head = '"""Module.\n\nMore.\n"""\n\n# Comment.\n'
    text = f'{head}X = """\na\n"""  # Comment.\n"""Docstring."""\n\n\ndef f():\n    """Do."""\n'
    assert count_code_lines(text) == 4
