"""Generation of the API reference, and of pages for repository files."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

import rxloop
from rxloop import op


@dataclass(frozen=True)
class Group:
    """Reference page for the public names of some modules."""

    title: str
    modules: tuple[str, ...]
    names: dict[str, str] = field(default_factory=dict[str, str], compare=False)
    """Paths of definitions, keyed by public path."""

    @property
    def path(self) -> str:
        """Page path."""
        return f"reference/{self.title.lower().replace(' ', '-')}.md"


LAYOUT = (
    ("Agents and runs", ("agents", "run", "recorded", "protocol.settings", "stream", "state")),
    ("Messages", ("protocol.messages", "protocol.parts")),
    ("Events", ("protocol",)),
    ("Requests", ("pipeline.requests", "pipeline.run_context")),
    ("Errors", ("errors",)),
    ("Interfaces", ("pipeline", "support.tasks")),
    ("Tools", ("tools",)),
    ("Providers", ("providers",)),
    ("Context", ("context",)),
    ("Thinking", ("thinking.graph", "thinking.sessions", "thinking.stages")),
    ("Strategies", ("strategies",)),
    ("Event logs", ("storage",)),
    ("Testing", ("testing",)),
    ("Experiments", ("evals", "evals.score")),
    ("Many runs", ("runtime",)),
)
"""Titles and modules of the reference pages. The build fails if a public name belongs to no page."""

_NAMED = re.compile(r"\[(?P<name>[\w-]+\.md)\]\((?P=name)(?P<anchor>#[\w-]+)?\)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_SCREEN = re.compile(r"^<!-- screen: (?P<name>\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()\.\./(?P<path>[\w./-]+)(?P<anchor>#[\w-]+)?(?=\))")
_DOCS_LINK = re.compile(r"(?<=\]\()docs/(?=[\w-]+\.md[#)])")
"""Links from CONTRIBUTING.md to documents, which are in the same folder on the site."""


def list_operators() -> list[str]:
    """Return the names of all operators and views."""
    return [name for name in op.__all__ if inspect.isfunction(getattr(op, name))]


def make_groups() -> list[Group]:
    """Create the reference pages.

    Raises:
        LookupError: A public name belongs to no page.
    """
    found = [Group(title, tuple(f"rxloop.{module}" for module in modules)) for title, modules in LAYOUT]
    unassigned = [
        f"rxloop.{name}"
        for name, path in _iter_public_names(rxloop)
        if name != "op" and not _assign(found, f"rxloop.{name}", path, path.rpartition(".")[0])
    ]
    if unassigned:
        raise LookupError(f"LAYOUT must contain the modules of all public names; missing: {', '.join(unassigned)}")
    for group in found:
        for module in group.modules:
            if hasattr(import_module(module), "__all__"):
                for name, path in _iter_public_names(import_module(module)):
                    # Several modules can export the same object.
                    if not any(path in other.names.values() for other in found):
                        _assign([group], f"{module}.{name}", path, module)
    return found


def _assign(groups: Iterable[Group], name: str, path: str, module: str) -> bool:
    """Add a public name to the first page that contains its module. Return False if there is none."""
    for group in groups:
        if any(module == each or module.startswith(f"{each}.") for each in group.modules):
            if path not in group.names.values():
                group.names[name] = path
            return True
    return False


def _iter_public_names(module: ModuleType) -> Iterator[tuple[str, str]]:
    imported = dict(_iter_imports(module))
    for name in module.__all__:
        if name.startswith("__"):
            continue
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, f"{value.__module__}.{value.__qualname__}"
        else:
            yield name, imported.get(name, f"{module.__name__}.{name}")


def _iter_imports(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield imported names with their origins, because constants and type aliases have no `__module__`."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def make_reference_pages() -> Iterator[tuple[str, str, str]]:
    """Yield the title, path and text of each reference page, except for operators."""
    for group in make_groups():
        first = _make_entry(group.modules[0], show_root_heading=False, show_root_toc_entry=False, members=False)
        text = [f"# {group.title}\n", first]
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, path in group.names.items():
            module, _, own = name.rpartition(".")
            sections.setdefault(module, []).append((own, path))
        for module, entries in sections.items():
            text.append(f"## From `{module}`\n")
            text += [_make_entry(path, heading=own, toc_label=own, heading_level=3) for own, path in sorted(entries)]
        yield group.title, group.path, "\n".join(text)


def make_operator_pages() -> Iterator[tuple[str, str, str]]:
    """Yield the title, path and text of the operator overview, and of a page per operator."""
    table = ["# Operators and views\n", "| operator or view | description |\n|---|---|"]
    for name in list_operators():
        summary = (inspect.getdoc(getattr(op, name)) or "").split("\n\n")[0].replace("\n", " ")
        table.append(f"| [`op.{name}`]({name}.md) | {summary} |")
    types = [(name, path) for name, path in _iter_public_names(op) if name not in list_operators()]
    table += ["\n## Types\n", *(_make_entry(path, heading=f"op.{name}", heading_level=3) for name, path in types)]
    yield "All operators", "reference/op/index.md", "\n".join(table) + "\n"
    for name in list_operators():
        function = getattr(op, name)
        entry = _make_entry(f"{function.__module__}.{function.__qualname__}", heading=f"op.{name}", heading_level=1)
        yield f"op.{name}", f"reference/op/{name}.md", entry


def _make_entry(path: str, **options: object) -> str:
    lines = [
        f"      {key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()
    ]
    return "\n".join([f"::: {path}", "    options:", *lines, ""])


def find_linked_files(text: str, page: str) -> Iterator[Path]:
    """Yield the paths of repository files linked by a document."""
    if "/" not in page:
        for match in _LINK.finditer(text):
            yield Path(match["path"])


def replace_links(text: str, page: str) -> str:
    """Replace links to repository files by links to their pages."""
    if "/" in page:
        return text
    text = _LINK.sub(lambda match: f"{make_page_path(Path(match['path']))}{match['anchor'] or ''}", text)
    return _DOCS_LINK.sub("", text)


def add_titles(text: str, titles: Mapping[str, str]) -> str:
    """Replace file names by page titles in links such as `[tools.md](tools.md)`."""
    return _NAMED.sub(
        lambda match: f"[{titles.get(match['name'], match['name'])}]({match['name']}{match['anchor'] or ''})", text
    )


def add_screens(text: str, recorded: Collection[str]) -> str:
    """Replace comments such as `<!-- screen: run -->` by the recorded screen, or remove them if there is none.

    Args:
        text: Markdown document.
        recorded: Names of the recorded files.
    """

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        file = next((each for each in sorted(recorded) if each.rpartition(".")[0] == name), None)
        return f"![Screen of rxloop {name}](assets/{file})" if file else ""

    return _SCREEN.sub(replace, text)


def find_title(text: str) -> str | None:
    """Return the title of a Markdown document."""
    found = _TITLE.search(text)
    return found[1] if found else None


def make_page_path(path: Path) -> str:
    """Return the path of the page for a repository file."""
    return path.name.lower() if path.suffix == ".md" else path.with_suffix(".md").as_posix()


def read_page(root: Path, path: Path) -> str:
    """Read a repository file as Markdown. Source code is put into a code block.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    text = (root / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = {".py": "python", ".sh": "bash"}.get(path.suffix, "text")
    title = read_task(root / path) if path.parent.name == "cookbook" else path.name
    return f'# {title}\n\n````{language} title="{path.as_posix()}"\n{text}````\n'


def read_task(path: Path) -> str:
    """Return the first line of a program's docstring, without the full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.name
    return docstring.splitlines()[0].removesuffix(".")
