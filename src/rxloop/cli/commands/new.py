"""Command `new`: projects created from templates."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli.installation import is_from_index, make_install_command
from rxloop.cli.options import decode
from rxloop.cli.render import format_count
from rxloop.cli.terminal import notify, report_errors, write
from rxloop.errors import ConfigurationError

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_SUFFIX = ".tmpl"
"""Suffix of template files, so that tools do not treat them as source code of rxloop."""


class Template(StrEnum):
    """Project template."""

    agent = "agent"
    service = "service"
    worker = "worker"


_EXTRAS = {Template.agent: "cli", Template.service: "serve,postgres", Template.worker: "serve,postgres"}
"""Extras required by the projects."""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project and its folder.")],
    template: Annotated[
        Template,
        typer.Option(
            "--template", "-t", help="An agent with a tool, an HTTP service, or servers and workers with Postgres."
        ),
    ] = Template.agent,
) -> None:
    """Create a project from a template.

    The project has a README, tests and a pyproject.toml. Existing folders are never changed.
    """
    with report_errors():
        name = decode(name)
        module = _make_module_name(name)
        folder = Path(name)
        try:
            folder.mkdir()
        except FileExistsError:
            raise ConfigurationError(f"{name!r} already exists; choose another name, or delete it first") from None
        count = 0
        for path, text in _read_folder(files("rxloop.cli") / "templates" / template.value, ""):
            file = folder / path.replace("@MODULE@", module)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("@NAME@", name).replace("@MODULE@", module), encoding="utf-8")
            count += 1
        write(f"{folder}\n")
        notify(f"created {format_count(count, 'file')}; {folder / 'README.md'} shows the next steps")
        if not is_from_index():
            command = make_install_command(_EXTRAS[template])
            notify(f"rxloop is not from a package index: in a new environment, run {command} first")


def _make_module_name(name: str) -> str:
    """Convert a project name into a module name.

    Raises:
        ConfigurationError: The name is invalid or hides another module.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"NAME must consist of lower-case letters, digits and hyphens, such as my-agent, got {name!r}"
        )
    module = name.replace("-", "_")
    if module in sys.stdlib_module_names or module in ("rxloop", "tests"):
        raise ConfigurationError(f"{name!r} would hide the module {module}; choose another name, such as my-{name}")
    return module


def _read_folder(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield relative paths and contents of template files."""
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _read_folder(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            name = entry.name.removesuffix(_SUFFIX).replace("dot_", ".")
            yield f"{prefix}{name}", entry.read_text(encoding="utf-8")
