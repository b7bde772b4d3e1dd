"""mkdocs hooks that add generated pages and the style of diagrams."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from drawing import STYLE
from llms import TextPage, clean_text, make_full_text, make_overview
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from pages import (
    add_screens,
    add_titles,
    find_linked_files,
    find_title,
    make_operator_pages,
    make_page_path,
    make_reference_pages,
    read_page,
    read_task,
    replace_links,
)

ROOT = Path(__file__).parents[2]
COOKBOOK = "examples/cookbook"
STYLES = "assets/marbles.css"
SCREENS = ROOT / "build/screens"
"""Folder of the terminal screens recorded by `scripts/screens`."""
_state: dict[str, Any] = {}
"""Navigation and files of the current build. mkdocs does not pass them to `on_post_build`."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add generated pages to the navigation."""
    generated: dict[str, list[Any]] = {
        "Python API": [{title: path} for title, path, _ in make_reference_pages()],
        "Operators and views": [{title: path} for title, path, _ in make_operator_pages()],
        "Recipes": [{read_task(ROOT / path): make_page_path(path)} for path in _list_programs(COOKBOOK)],
        "Examples": [{path.name: make_page_path(path)} for path in _list_programs("examples")],
    }
    settings = cast("dict[str, Any]", config)
    settings["nav"] = [_fill_section(entry, generated) for entry in settings["nav"]]
    settings["extra_css"] = [*settings["extra_css"], STYLES]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated pages and styles to the site."""
    linked_files = {*_list_programs("examples"), *_list_programs(COOKBOOK)}
    for file in files.documentation_pages():
        linked_files.update(find_linked_files(file.content_string, file.src_uri))
    for path in sorted(linked_files):
        if path.suffix and (ROOT / path).is_file():
            hidden = InclusionLevel.NOT_IN_NAV if path.parts[0] != "examples" else InclusionLevel.UNDEFINED
            files.append(File.generated(config, make_page_path(path), content=read_page(ROOT, path), inclusion=hidden))
    for _, path, text in [*make_reference_pages(), *make_operator_pages()]:
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, STYLES, content=STYLE))
    for screen in sorted(SCREENS.glob("*.*")):
        files.append(File.generated(config, f"assets/{screen.name}", abs_src_path=str(screen)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt links to repository files and documents, and add terminal screens."""
    markdown = add_screens(markdown, {screen.name for screen in SCREENS.glob("*.*")})
    titles = {file.src_uri: find_title(file.content_string) or file.src_uri for file in files.documentation_pages()}
    return replace_links(add_titles(markdown, titles), page.file.src_uri)


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation and files for `on_post_build`."""
    _state.update(nav=nav, files=files)
    return nav


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write llms.txt, llms-full.txt, and the Markdown of each page next to its HTML."""
    pages = [_read_text_page(page) for page in cast("Navigation", _state["nav"]).pages]
    site = Path(config.site_dir)
    full = make_full_text(pages)
    (site / "llms-full.txt").write_text(full, encoding="utf-8")
    overview = make_overview(config.site_name, config.site_description or "", pages, full)
    (site / "llms.txt").write_text(overview, encoding="utf-8")
    for file in cast("Files", _state["files"]).documentation_pages():
        if file.page and not (page := _read_text_page(file.page)).is_generated:
            (site / page.path).write_text(clean_text(page.text), encoding="utf-8")


def _fill_section(entry: Any, generated: dict[str, list[Any]]) -> Any:
    """Return a navigation entry, with the generated pages in its empty sections."""
    if not isinstance(entry, dict):
        return entry
    filled: dict[str, Any] = {}
    for title, part in cast("dict[str, Any]", entry).items():
        if part == []:
            filled[title] = generated[title]
        elif isinstance(part, list):
            filled[title] = [_fill_section(each, generated) for each in cast("list[Any]", part)]
        else:
            filled[title] = part
    return filled


def _read_text_page(page: Page) -> TextPage:
    section = next((ancestor.title or "" for ancestor in reversed([*page.ancestors])), "")
    title = str(page.title or page.file.src_uri)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return TextPage(section, title, page.file.src_uri, page.markdown or "")


def _list_programs(folder: str) -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / folder).glob("*.py"))]
