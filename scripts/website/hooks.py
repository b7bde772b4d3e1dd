"""Hooks of mkdocs: pages that are made while the documents are built, and the picture of each operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from drawing import STYLE
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pages import linked, operator_pages, page_of, reference, relinked, shown, title_of, titled

ROOT = Path(__file__).parents[2]
STYLES = "assets/marbles.css"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put what is generated into the navigation."""
    examples = [{path.name: page_of(path)} for path in _examples()]
    made: list[Any] = [{title: path} for title, path, _ in reference()]
    made.insert(1, {"Operators and views": [{title: path} for title, path, _ in operator_pages()]})
    generated = {"Reference": made, "Examples": examples}
    settings = cast("dict[str, Any]", config)
    settings["nav"] = [
        {title: generated.get(title, part) for title, part in entry.items()} for entry in settings["nav"]
    ]
    settings["extra_css"] = [*settings["extra_css"], STYLES]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are generated."""
    wanted = set(_examples())
    for file in files.documentation_pages():
        wanted.update(linked(file.content_string, file.src_uri))
    for path in sorted(wanted):
        if path.suffix and (ROOT / path).is_file():
            hidden = InclusionLevel.NOT_IN_NAV if path.parts[0] != "examples" else InclusionLevel.UNDEFINED
            files.append(File.generated(config, page_of(path), content=shown(ROOT, path), inclusion=hidden))
    for _, path, text in [*reference(), *operator_pages()]:
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, STYLES, content=STYLE))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages."""
    titles = {file.src_uri: title_of(file.content_string) or file.src_uri for file in files.documentation_pages()}
    return relinked(titled(markdown, titles), page.file.src_uri)


def _examples() -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / "examples").glob("*.py"))]
