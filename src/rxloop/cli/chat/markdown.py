"""Incremental Markdown renderer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO

from markdown_it.token import Token
from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, HorizontalRule, ListItem, Markdown, TableElement
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from typing_extensions import override

from rxloop.cli.chat.blocks import Block, BlockParser, CodeEnd, CodeLine, CodeStart, Part, make_parser
from rxloop.support.text import to_visible

MAX_WIDTH = 100
"""Maximum number of columns of prose, because longer lines are hard to read."""
_MIN_COLUMN = 8
"""Minimum number of columns for each cell of a table."""
_CONTEXT = 100
"""Number of previous lines used to highlight a line of code."""
_MAX_TAIL_LINES = 100
"""Maximum number of rendered lines for unfinished blocks, because screens show only the last lines."""
_RULE = "─"
_PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
"""Trailing spaces, which terminals would wrap after reducing their width."""
_STYLES = r"\1"
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.link": "blue",
        "markdown.link_url": "dim underline",
        "markdown.item.bullet": "bold",
    }
)
"""Styles that are readable on light and dark backgrounds."""


class _Heading(Heading):
    """Heading at the left margin."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        yield self.text


class _Rule(HorizontalRule):
    """Horizontal rule without an empty line."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="dim", characters=_RULE)


class _Item(ListItem):
    """List item whose indentation depends only on its own number, so that items can be rendered one by one."""

    @override
    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        label = f" {number}. "
        lines = console.render_lines(self.elements, options.update(width=max(options.max_width - len(label), 1)))
        for index, line in enumerate(lines):
            yield Segment(" " * len(label) if index else label, console.get_style("bold"))
            yield from line
            yield Segment.line()


class _Table(TableElement):
    """Table that folds long words, and becomes a list of fields if the terminal is too narrow."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        if options.max_width < _MIN_COLUMN * len(head):
            yield from _list_fields(head, rows)
            return
        table = Table(box=SIMPLE, pad_edge=False, show_edge=False, border_style="dim", header_style="bold")
        for cell in head:
            table.add_column(cell, overflow="fold", justify=cell.justify or "default")
        for row in rows:
            table.add_row(*row)
        yield table


def _list_fields(head: Sequence[Text], rows: Sequence[Sequence[Text]]) -> RenderResult:
    for number, row in enumerate(rows):
        if number:
            yield Text()
        for name, cell in zip(head, row, strict=False):
            yield Text.assemble((name.plain, "bold"), ": ", cell)


class _Markdown(Markdown):
    """Markdown with visible link targets and preserved line breaks."""

    elements = {
        **Markdown.elements,
        "heading_open": _Heading,
        "hr": _Rule,
        "list_item_open": _Item,
        "table_open": _Table,
    }

    def __init__(self, source: str, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.parsed = make_parser().parse(source)
        _prepare_text(self.parsed)


def _prepare_text(tokens: Sequence[Token]) -> None:
    """Escape control characters, and keep line breaks.

    Control characters can be written as entities such as `&#8238;`. Models use line breaks in addresses and poems.
    """
    for token in tokens:
        token.content = to_visible(token.content)
        token.attrs = {name: to_visible(str(value)) for name, value in token.attrs.items()}
        if token.type == "softbreak":
            token.type = "hardbreak"
        _prepare_text(token.children or ())


class MarkdownRenderer:
    """Renderer for the streamed text of one message.

    Finished parts are returned as text with escape sequences. The caller displays them permanently, and replaces the
    tail whenever it changes.

    Args:
        width: Number of columns.
    """

    def __init__(self, width: int) -> None:
        self.width = max(width, 1)
        self._parser = BlockParser()
        self._code: list[str] = []
        self._language = "text"
        self._is_empty = True

    def feed(self, text: str) -> str:
        """Add text and return the parts that are now finished."""
        return self._render_all(self._parser.feed(to_visible(text)))

    def finish(self) -> str:
        """Return the rest of the message."""
        rest = self._render_all(self._parser.finish())
        self._is_empty = True
        return rest

    def render_tail(self) -> str:
        """Return the unfinished part."""
        match self._parser.tail:
            case Block() as block:
                return self._render_block(block._replace(source=_shorten(block.source)))
            case CodeLine(source):
                return self._render_code(source)
            case None:
                return ""

    def _render_all(self, parts: Sequence[Part]) -> str:
        return "".join(map(self._render_part, parts))

    def _render_part(self, part: Part) -> str:
        match part:
            case Block():
                rendered = self._render_block(part)
            case CodeStart(language):
                self._code, self._language = [], language or "text"
                gap = "" if self._is_empty else "\n"
                rendered = gap + self._render(Rule(Text(language, "dim"), style="dim", align="left"))
            case CodeLine(source):
                rendered = self._render_code(source)
                self._code = [*self._code[1 - _CONTEXT :], source]
            case CodeEnd():
                rendered = self._render(Rule(style="dim"))
        self._is_empty = False
        return rendered

    def _render_block(self, block: Block) -> str:
        gap = "\n" if block.is_separate and not self._is_empty else ""
        return gap + self._render(_Markdown(block.source, "ansi_dark"))

    def _render_code(self, source: str) -> str:
        syntax = Syntax("", self._language, theme="ansi_dark")
        text = syntax.highlight("\n".join([*self._code, source]))
        text.rstrip()
        lines = text.split("\n", allow_blank=True)
        line = lines[len(self._code)] if len(lines) > len(self._code) else Text()
        # Terminals wrap long lines themselves, and copy the wrapped line as a single one.
        return self._render(line, soft_wrap=True)

    def _render(self, renderable: RenderableType, *, soft_wrap: bool = False) -> str:
        return render_ansi(renderable, min(self.width, MAX_WIDTH), soft_wrap=soft_wrap)


def _shorten(source: str) -> str:
    """Remove middle lines from long blocks, keeping initial lines such as table headers."""
    lines = source.split("\n")
    return source if len(lines) <= _MAX_TAIL_LINES else "\n".join([*lines[:2], *lines[2 - _MAX_TAIL_LINES :]])


def render_ansi(renderable: RenderableType, width: int, *, soft_wrap: bool = False) -> str:
    """Render text with escape sequences, and escape all other control characters.

    Args:
        renderable: Rich renderable.
        width: Number of columns.
        soft_wrap: Do not wrap long lines.
    """
    console = Console(
        file=StringIO(), width=width, force_terminal=True, highlight=False, markup=False, emoji=False, theme=_THEME
    )
    with console.capture() as capture:
        console.print(renderable, soft_wrap=soft_wrap)
    lines = capture.get().strip("\n").split("\n")
    return "".join(f"{_PADDING.sub(_STYLES, line)}\n" for line in lines)
