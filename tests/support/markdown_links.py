"""Links in Markdown text."""

from __future__ import annotations

import re
from collections.abc import Iterator

CODE = re.compile(r"^ *(`{3,}).*?^ *\1`* *$|<!--.*?-->", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(
    r"\]\((?P<inline>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?: +\"[^\"]*\")?\)"
    r"|^\[[^\]]+\]: *(?P<reference>\S+)|<(?P<automatic>https?:[^>]*)>|\b(?:href|src)=\"(?P<html>[^\"]*)\"",
    re.MULTILINE,
)


def find_links(text: str) -> Iterator[str]:
    """Yield all links of a page, ignoring code and comments."""
    for match in LINK.finditer(INLINE_CODE.sub("x", CODE.sub("", text))):
        yield next(group for group in match.groups() if group is not None)
