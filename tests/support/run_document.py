"""Program that runs the Python blocks of a Markdown document in one namespace: `run_document.py README.md`.

Blocks may use `await`, `async for` and `async with` at the top level. Functions named `test_...` are called after
their block. Blocks inside HTML comments also run, for setup that readers need not see. A block such as
`python title="LangGraph"` shows another framework and does not run.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import textwrap
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=fence)`* *$",
    re.MULTILINE | re.DOTALL,
)
FOREIGN = re.compile(r'title="(?!rxloop")')
"""Title of a block for another framework."""


def python_blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, info string and code of each fenced Python block, except for other frameworks."""
    return (block for block in iter_blocks(text) if not FOREIGN.search(block[1]))


def iter_blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, info string and code of each fenced Python block."""
    for match in FENCE.finditer(text):
        words = match["info"].lower().split()
        if words and words[0].startswith("py"):
            yield text.count("\n", 0, match.start("body")), match["info"].strip(), textwrap.dedent(match["body"])


def main(path: Path) -> None:
    """Execute the document's code blocks."""
    module = ModuleType("__main__")
    # Annotations and sources are looked up through the module.
    sys.modules["__main__"] = module
    with asyncio.Runner() as runner:
        for line, _, source in python_blocks(path.read_text(encoding="utf-8")):
            known = set(vars(module))
            # Leading empty lines make tracebacks show the line of the document.
            code = compile("\n" * line + source, str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            _run(code, module, runner)
            for name in [name for name in vars(module) if name.startswith("test_") and name not in known]:
                _finish(vars(module)[name](), runner)


def _run(code: CodeType, module: ModuleType, runner: asyncio.Runner) -> None:
    _finish(eval(code, vars(module)), runner)


def _finish(result: Coroutine[Any, Any, Any] | None, runner: asyncio.Runner) -> None:
    if inspect.iscoroutine(result):
        runner.run(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
