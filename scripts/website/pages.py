"""The pages that are made when the documents are built: the reference, and what documents link to."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

import rxloop
from rxloop import op


@dataclass(frozen=True)
class Group:
    """A page of the reference: the public names of some modules."""

    title: str
    modules: tuple[str, ...]
    names: dict[str, str] = field(default_factory=dict[str, str], compare=False)
    """What a name is called by those who use it, and where it is defined."""

    @property
    def path(self) -> str:
        """The place of the page."""
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
"""The pages and the modules whose names they have. A public name that belongs nowhere fails the build."""

_NAMED = re.compile(r"\[(?P<name>[\w-]+\.md)\]\((?P=name)(?P<anchor>#[\w-]+)?\)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()\.\./(?P<path>[\w./-]+)(?P<anchor>#[\w-]+)?(?=\))")


def operators() -> list[str]:
    """The public operators and views."""
    return [name for name in op.__all__ if inspect.isfunction(getattr(op, name))]


def groups() -> list[Group]:
    """The pages of the reference with their names.

    Raises:
        LookupError: A public name has no page.
    """
    found = [Group(title, tuple(f"rxloop.{module}" for module in modules)) for title, modules in LAYOUT]
    homeless = [
        f"rxloop.{name}"
        for name, path in _public(rxloop)
        if name != "op" and not _place(found, f"rxloop.{name}", path, path.rpartition(".")[0])
    ]
    if homeless:
        raise LookupError(f"the reference has no page for {', '.join(homeless)}: name its module in LAYOUT")
    for group in found:
        for module in group.modules:
            if hasattr(import_module(module), "__all__"):
                for name, path in _public(import_module(module)):
                    # What another page has already is not shown twice.
                    if not any(path in other.names.values() for other in found):
                        _place([group], f"{module}.{name}", path, module)
    return found


def _place(found: Iterable[Group], shown: str, path: str, module: str) -> bool:
    """Put a name on the first page that has its module, unless it is there; False if no page has."""
    for group in found:
        if any(module == each or module.startswith(f"{each}.") for each in group.modules):
            if path not in group.names.values():
                group.names[shown] = path
            return True
    return False


def _public(module: ModuleType) -> Iterator[tuple[str, str]]:
    imported = dict(_imports(module))
    for name in module.__all__:
        if name.startswith("__"):
            continue
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, f"{value.__module__}.{value.__qualname__}"
        else:
            yield name, imported.get(name, f"{module.__name__}.{name}")


def _imports(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Where the names come from that a module imports: a constant or an alias of types cannot be asked."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def reference() -> Iterator[tuple[str, str, str]]:
    """The title, the path and the text of each page of the reference, the operators not among them."""
    for group in groups():
        first = _entry(group.modules[0], show_root_heading=False, show_root_toc_entry=False, members=False)
        text = [f"# {group.title}\n", first]
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, path in group.names.items():
            module, _, own = name.rpartition(".")
            sections.setdefault(module, []).append((own, path))
        for module, entries in sections.items():
            text.append(f"## From `{module}`\n")
            text += [_entry(path, heading=own, toc_label=own, heading_level=3) for own, path in sorted(entries)]
        yield group.title, group.path, "\n".join(text)


def operator_pages() -> Iterator[tuple[str, str, str]]:
    """The title, the path and the text of the page of each operator, and first of a page with all of them."""
    table = ["# Operators and views\n", "| operator or view | does |\n|---|---|"]
    for name in operators():
        summary = (inspect.getdoc(getattr(op, name)) or "").split("\n\n")[0].replace("\n", " ")
        table.append(f"| [`op.{name}`]({name}.md) | {summary} |")
    types = [(name, path) for name, path in _public(op) if name not in operators()]
    table += ["\n## What views give\n", *(_entry(path, heading=f"op.{name}", heading_level=3) for name, path in types)]
    yield "All operators", "reference/op/index.md", "\n".join(table) + "\n"
    for name in operators():
        function = getattr(op, name)
        entry = _entry(f"{function.__module__}.{function.__qualname__}", heading=f"op.{name}", heading_level=1)
        yield f"op.{name}", f"reference/op/{name}.md", entry


def _entry(path: str, **options: object) -> str:
    lines = [
        f"      {key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()
    ]
    return "\n".join([f"::: {path}", "    options:", *lines, ""])


def linked(text: str, page: str) -> Iterator[Path]:
    """What a document links to outside the documents, by its place in the repository."""
    if "/" not in page:
        for match in _LINK.finditer(text):
            yield Path(match["path"])


def relinked(text: str, page: str) -> str:
    """A document with its links to files of the repository led to the pages that show them."""
    if "/" in page:
        return text
    return _LINK.sub(lambda match: f"{page_of(Path(match['path']))}{match['anchor'] or ''}", text)


def titled(text: str, titles: Mapping[str, str]) -> str:
    """A document whose links `[tools.md](tools.md)`, which are for readers of files, say the titles of the pages."""
    return _NAMED.sub(
        lambda match: f"[{titles.get(match['name'], match['name'])}]({match['name']}{match['anchor'] or ''})", text
    )


def title_of(text: str) -> str | None:
    """The title of a document."""
    found = _TITLE.search(text)
    return found[1] if found else None


def page_of(path: Path) -> str:
    """The page that shows a file of the repository."""
    return path.name.lower() if path.suffix == ".md" else path.with_suffix(".md").as_posix()


def shown(root: Path, path: Path) -> str:
    """The page of a file of the repository: a document as it is, a program with its code.

    Raises:
        FileNotFoundError: A document links to a file that does not exist.
    """
    text = (root / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = {".py": "python", ".sh": "bash"}.get(path.suffix, "text")
    return f'# {path.name}\n\n````{language} title="{path.as_posix()}"\n{text}````\n'
