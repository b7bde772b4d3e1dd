"""Check Python blocks in documents with `mypy --strict` and basedpyright.

Pass document paths as arguments to check only these documents.

Each document is written to a temporary module that preserves its line numbers. Errors are therefore reported as
`docs/tools.md:12`. basedpyright uses its strict rules, except the ones disabled in `PYRIGHT`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.run_document import python_blocks  # noqa: E402

PROGRAMS = Path(sys.executable).parent
TOP_LEVEL = re.compile(
    r'"(await|async for|async with)" outside (async )?function|"await" allowed only within async function'
    r'|Use of "async" not allowed outside of async function'
)
"""Errors that are expected, because documents use `await` at the top level."""
UNTYPED_LIBRARY = re.compile(r"hypercorn|SigV4Auth")
"""Lines whose types are unknown because a library is only partially typed."""
PYRIGHT = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT / "src")],
    # Documents can define a name several times, and can end a block with an expression.
    "reportRedeclaration": False,
    "reportUnusedExpression": False,
    # Short lambdas and imports for a later block are fine in documents.
    "reportUnknownLambdaType": False,
    "reportDuplicateImport": False,
    "reportUnusedImport": False,
    # Several dependencies are not typed.
    "reportMissingTypeStubs": False,
}


def find_pages() -> list[Path]:
    """Return all documents with tested code blocks."""
    folders = (ROOT / "docs", ROOT / "src/rxloop/skill")
    pages = [path for folder in folders for path in sorted(folder.rglob("*.md"))]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]


def write_modules(pages: Iterable[Path], folder: Path) -> dict[str, Path]:
    """Write a module for each page with Python blocks. Return the pages by module name."""
    written: dict[str, Path] = {}
    for page in pages:
        lines: list[str] = []
        for line, _, block in python_blocks(page.read_text(encoding="utf-8")):
            lines += [""] * (line - len(lines))
            lines += block.splitlines()
        if lines:
            name = f"page_{len(written)}_{re.sub(r'[^a-z0-9]', '_', page.stem.lower())}"
            (folder / f"{name}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
            written[name] = page
    return written


def run_mypy(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Run `mypy --strict`, yielding errors as module, line and message."""
    command = [
        PROGRAMS / "mypy",
        "--strict",
        "--allow-redefinition",
        "--disable-error-code=no-redef",
        "--disable-error-code=import-untyped",
        "--config-file=",
    ]
    command += ["--python-executable", sys.executable, "--python-version", "3.11", "--no-pretty", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode > 1 or ended.stderr:
        sys.exit(ended.stdout + ended.stderr)
    for file, line, message in re.findall(r"^(.*?\.py):(\d+): error: (.*)$", ended.stdout, re.MULTILINE):
        yield Path(file).stem, int(line), f"{message} (mypy)"


def run_pyright(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Run basedpyright, yielding errors as module, line and message."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({**PYRIGHT, "include": ["."]}), encoding="utf-8")
    command = [PROGRAMS / "basedpyright", "--project", config, "--pythonpath", sys.executable, "--outputjson"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        problems = json.loads(ended.stdout)["generalDiagnostics"]
    except ValueError:
        sys.exit(ended.stdout + ended.stderr)
    for problem in problems:
        rule = problem.get("rule", "basedpyright")
        yield Path(problem["file"]).stem, problem["range"]["start"]["line"] + 1, f"{problem['message']} ({rule})"


def check_pages(pages: Iterable[Path]) -> Iterator[str]:
    """Yield the errors of both checkers in the given pages."""
    with TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        folder = Path(name)
        written = write_modules(pages, folder)
        by_mypy = pool.submit(lambda: list(run_mypy(folder)))
        problems = [*run_pyright(folder), *by_mypy.result()]
    lines = {module: page.read_text(encoding="utf-8").splitlines() for module, page in written.items()}
    for module, line, message in sorted(problems):
        untyped = "(reportUnknown" in message and UNTYPED_LIBRARY.search(lines[module][line - 1])
        if not untyped and not TOP_LEVEL.search(message):
            yield f"{written[module]}:{line}: {message}"


if __name__ == "__main__":
    errors = list(check_pages([Path(argument) for argument in sys.argv[1:]] or find_pages()))
    print("\n".join([*errors, f"{len(errors)} type errors in documents"]))
    sys.exit(bool(errors))
