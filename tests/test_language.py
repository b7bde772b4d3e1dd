"""Names and sentences follow the section "Names and sentences" of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src").rglob("*.py"))

SENTENCES = {
    "a docstring that starts with a question word": re.compile(r"^(What|Whether|How|Who|Whom|Whose|Where|Which)\b"),
    "'is no <noun>' instead of 'is not a <noun>'": re.compile(
        r"(?<!there )(?<!There )\bis no (?!longer|more|effect)[a-z]"
    ),
    "an unnamed actor": re.compile(r"\b(nobody|somebody|whoever|everybody|whom)\b", re.IGNORECASE),
    "'go on' instead of 'continue'": re.compile(r"\b(go|goes|going|went|gone) on (with|as|until|after|from)\b"),
    "'is to be' instead of 'must be'": re.compile(r"\b(is|are) to be\b"),
    "a retired word": re.compile(
        r"\b(anew|thereby|letters? to a run|mailbox|bells?|lanes?|strangers?|at rest|taken up again|main line)\b"
    ),
}
RETIRED_NAMES = re.compile(
    r"^(anew|begun|bells?|doors?|heard|hearing|lanes?|letters?|mailbox|patience|seam|settle[ds]?|settling|strangers?"
    r"|telling|told|traits|whoever|nobody|somebody)$"
)
PARTICIPLE = re.compile(
    r"^_?(asked|told|said|taken|given|kept|made|held|begun|found|known|shown|heard|seen|left|gone|sent|used|wanted|placed)(_|$)"
)
PREPOSITION = re.compile(r"_(of|in|at|from|to|by|with|beside|behind|above|below)$")
INTERFACES = frozenset({"call_at", "can_transition_to"})
"""Methods with the name that a library or the literature uses."""

FIELD_TERMS = frozenset(
    {
        "testing",
        "streaming",
        "thinking",
        "sequential_thinking",
        "strategic_thinking",
        "answering",
        "steering",
        "docstring",
    }
)


def read_sentences(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield docstrings, comments and exception messages with their lines and a flag for docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                if (
                    isinstance(part, ast.Expr)
                    and isinstance(part.value, ast.Constant)
                    and isinstance(part.value.value, str)
                ):
                    yield part.lineno, part.value.value.strip(), True
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            strings = [part.value for part in ast.walk(node.exc.args[0]) if isinstance(part, ast.Constant)]
            yield node.lineno, "".join(string for string in strings if isinstance(string, str)), False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# "), False


def find_sentences(source: str) -> Iterator[str]:
    """Yield lines with sentences that match a pattern."""
    for line, text, is_docstring in read_sentences(source):
        prose = re.sub(r"``?[^`]*``?", "x", text)
        for name, pattern in SENTENCES.items():
            if (is_docstring or not pattern.pattern.startswith("^")) and (match := pattern.search(prose)):
                yield f"{line}: {name}: {match[0]!r} in {text[:80]!r}"


def find_names(source: str) -> Iterator[str]:
    """Yield lines with names that contain a retired word, and with functions not named by a verb."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
                if name in INTERFACES:
                    continue
                if PREPOSITION.search(name) or (PARTICIPLE.search(name) and not is_property):
                    yield f"{node.lineno}: {name}: a function is a verb"
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                pass
            case ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        for word in re.findall(r"[A-Z]?[a-z]+", name):
            if RETIRED_NAMES.search(word.lower()):
                yield f"{node.lineno}: {name}: retired word {word}"


def test_sentences_avoid_the_patterns() -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in FILES}
    assert [f"{file}:{match}" for file, text in texts.items() for match in find_sentences(text)] == []


def test_names_avoid_retired_words() -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in FILES}
    assert [f"{file}:{match}" for file, text in texts.items() for match in find_names(text)] == []


def test_modules_are_named_by_nouns() -> None:
    assert [file for file in FILES if file.stem.endswith("ing") and file.stem not in FIELD_TERMS] == []


@pytest.mark.parametrize(
    "source",
    [
        '"""What a run keeps."""',
        'raise ValueError(f"{x} is no file")',
        "# Nobody reads this.",
        "def keep():\n    pass  # until the run goes on with the next step",
    ],
)
def test_pattern_in_a_sentence_is_found(source: str) -> None:
    assert len(list(find_sentences(source))) == 1


@pytest.mark.parametrize(
    "source", ["def told(): ...", "def text_of(): ...", "def read(letter): ...", "x.lane = 1", "class Strangers: ..."]
)
def test_pattern_in_a_name_is_found(source: str) -> None:
    assert len(list(find_names(source))) >= 1


@pytest.mark.parametrize(
    "source",
    [
        '"""Return the pending commands."""',
        'raise ValueError(f"path must be a file, got {x}")',
        "@property\ndef used(self):\n    '''Tokens used so far.'''",
    ],
)
def test_standard_english_is_accepted(source: str) -> None:
    assert [*find_sentences(source), *find_names(source)] == []
