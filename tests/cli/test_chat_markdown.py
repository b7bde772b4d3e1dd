"""Incremental Markdown rendering in chats."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from rxloop.cli.chat.blocks import Block, BlockParser
from rxloop.cli.chat.markdown import MarkdownRenderer

STYLE = re.compile(r"\x1b\[[0-9;]*m")
SAMPLE = """# Title

Intro with **bold** and `code`, a [link](http://x.example/z), <b>html</b> and
a second line.

1. one
2. two
   - nested

3. three

- a
* b

| city | note |
|---|--:|
| Oslo | rain |

```python
def f():
    return 1

```
after
~~~
plain
~~~

> quote

---
[1]: http://definition.example
![picture](http://a.example/b.png)
last
"""


def render(text: str, columns: int = 60, step: int = 1_000) -> list[str]:
    """Render a message streamed in pieces and return its lines."""
    renderer = MarkdownRenderer(columns)
    output = ""
    for index in range(0, len(text), step):
        output += renderer.feed(text[index : index + step])
        renderer.render_tail()
    return STYLE.sub("", output + renderer.finish()).splitlines()


def test_rendered_blocks() -> None:
    rule = "─" * 40
    assert render(SAMPLE, 40) == [
        "Title",
        "",
        "Intro with bold and code, a link",
        "(http://x.example/z), <b>html</b> and",
        "a second line.",
        "",
        " 1. one",
        " 2. two",
        "     • nested",
        "",
        " 3. three",
        "",
        " • a",
        " • b",
        "",
        "city   note",
        "───────────",
        "Oslo   rain",
        "",
        f"python {'─' * 33}",
        "def f():",
        "    return 1",
        "",
        rule,
        "",
        "after",
        "",
        rule,
        "plain",
        rule,
        "",
        "▌ quote",
        "",
        rule,
        "",
        "[1]: http://definition.example",
        "!picture (http://a.example/b.png)",
        "last",
    ]


@settings(max_examples=20)
@given(st.integers(1, 40), st.sampled_from([20, 40, 80]))
def test_result_does_not_depend_on_the_pieces(step: int, columns: int) -> None:
    assert render(SAMPLE, columns, step) == render(SAMPLE, columns)


@settings(max_examples=50)
@given(st.text("ab 1.-*_#>|`~[](){}<>&;\\!\n\t:\x1b\u202e", max_size=80), st.integers(1, 7))
def test_any_text_is_rendered_without_control_characters_and_without_lost_words(text: str, step: int) -> None:
    renderer = MarkdownRenderer(30)
    pieces = [renderer.feed(text[index : index + step]) for index in range(0, len(text), step)]
    output = STYLE.sub("", "".join(pieces) + renderer.finish())
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", output)
    # Code block languages may be shortened. All other words must be displayed.
    assert sum(map(output.count, "ab")) >= sum(map(text.count, "ab")) or "`" in text or "~" in text or "](" in text


def test_tail_shows_the_unfinished_block_and_finished_blocks_are_returned_once() -> None:
    renderer = MarkdownRenderer(40)
    assert renderer.feed("First **para") == ""
    assert STYLE.sub("", renderer.render_tail()) == "First **para\n"
    assert renderer.feed("graph**.") == ""
    assert STYLE.sub("", renderer.render_tail()) == "First paragraph.\n"
    assert renderer.feed("\n\n") == ""
    assert STYLE.sub("", renderer.feed("Sec")) == "First paragraph.\n"
    assert renderer.render_tail() == "\nSec\n"
    assert renderer.feed("ond.\n") == ""
    assert renderer.finish() == "\nSecond.\n"
    assert renderer.render_tail() == ""


def test_lines_of_code_are_returned_when_they_are_complete() -> None:
    renderer = MarkdownRenderer(40)
    assert "python" in renderer.feed("```python\nx = 1")
    assert STYLE.sub("", renderer.render_tail()) == "x = 1\n"
    assert STYLE.sub("", renderer.feed("00\ny")) == "x = 100\n"
    assert STYLE.sub("", renderer.render_tail()) == "y\n"


def test_code_is_highlighted_and_not_wrapped() -> None:
    renderer = MarkdownRenderer(20)
    output = renderer.feed('```python\nvalue = "a string that is longer than the terminal"\n```\n')
    assert '"a string that is longer than the terminal"' in STYLE.sub("", output).splitlines()[1]
    assert "\x1b[33m" in output


@pytest.mark.parametrize("text", ["&#8238;evil", "[a](x&#8238;y)", "`\u202e`", "a\x1b[2Jb", "\r\rx"])
def test_control_characters_are_escaped(text: str) -> None:
    output = "\n".join(render(text))
    assert re.search(r"\\u[0-9a-f]{4}|%E2%80%AE", output)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", output)


def test_table_becomes_a_list_of_fields_if_the_terminal_is_narrow() -> None:
    table = "| city | note |\n|---|---|\n| Oslo | a very long note |\n| Rome | sun |\n"
    assert render(table, 15) == ["city: Oslo", "note: a very", "long note", "", "city: Rome", "note: sun"]
    assert render(table, 24)[0] == "city   note"


def test_long_words_of_a_table_are_folded() -> None:
    lines = render(f"| a | b |\n|---|---|\n| x | {'y' * 50} |\n", 30)
    assert "".join(lines).count("y") == 50
    assert max(map(len, lines)) <= 30


def test_prose_uses_at_most_100_columns() -> None:
    assert max(map(len, render("word " * 100, 200))) <= 100


@pytest.mark.parametrize("text", ["a\n" * 300, "- item\n" * 300, "```\n" + "code\n" * 300, "word " * 3_000])
def test_long_answers_are_complete(text: str) -> None:
    output = "\n".join(render(text, 40, 50))
    for word in ("a", "item", "code", "word"):
        count = len(re.findall(rf"\b{word}\b", text))
        assert len(re.findall(rf"\b{word}\b", output)) == count


LONG_BLOCKS = ["| row | cell |\n|---|---|\n" + "| row | cell |\n" * 300, "row\n" * 600, "> row\n" * 600]


@pytest.mark.parametrize("text", LONG_BLOCKS)
def test_long_block_is_parsed_in_linear_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    parse = MarkdownIt.parse

    def count(parser: MarkdownIt, source: str) -> list[Token]:
        nonlocal parsed
        parsed += len(source)
        return parse(parser, source)

    monkeypatch.setattr(MarkdownIt, "parse", count)
    parser = BlockParser()
    parts = [part for line in text.splitlines(keepends=True) for part in parser.feed(line)]
    parts += parser.finish()
    assert parts == [Block(text.strip())]
    assert parsed < 30 * len(text)


@pytest.mark.parametrize("text", LONG_BLOCKS)
def test_tail_of_a_long_block_contains_only_its_first_and_last_lines(text: str) -> None:
    renderer = MarkdownRenderer(40)
    renderer.feed("last".join(text.replace("row", "first", 1).rsplit("row", 1)))
    tail = renderer.render_tail()
    assert "first" in tail
    assert "last" in tail
    assert tail.count("\n") <= 101


@pytest.mark.parametrize("count", range(150, 160))
def test_blocks_after_a_long_block_are_returned_separately(count: int) -> None:
    parser = BlockParser()
    pieces = ["row\n"] * count + ["\n", "* item\n", "\n", "last\n"]
    parts = [part for piece in pieces for part in parser.feed(piece)]
    parts += parser.finish()
    assert parts == [Block("\n".join(["row"] * count)), Block("* item"), Block("last")]
