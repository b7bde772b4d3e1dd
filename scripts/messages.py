"""Print the messages of all exceptions, warnings and log lines in src/rxloop."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/rxloop"
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log", "warn"})


def find_messages(tree: ast.Module) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield the line number, the exception or log method, and the message of each call."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(func=func, args=[message, *_])):
                yield node.lineno, ast.unparse(func), message
            case ast.Call(func=ast.Attribute(attr=method), args=[*_, message]) if method in LOG_METHODS:
                yield node.lineno, method, next((arg for arg in node.args if has_string(arg)), message)
            case ast.Call(func=ast.Name(id=name), args=[message, *_]) if name.endswith(("Error", "Warning", "Notice")):
                yield node.lineno, name, message
            case _:
                pass


def has_string(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))


def main() -> None:
    parts = sys.argv[1:] or [""]
    files = [file for part in parts for file in sorted((SOURCE / part).rglob("*.py"))]
    for file in files:
        messages = {
            (line, kind, ast.unparse(message)) for line, kind, message in find_messages(ast.parse(file.read_text()))
        }
        for line, kind, message in sorted(messages):
            print(f"{file.relative_to(SOURCE)}:{line}: {kind}: {message}")


if __name__ == "__main__":
    main()
