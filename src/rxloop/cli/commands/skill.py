"""Command `skill`: instructions for coding agents that write programs with rxloop."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

import rxloop
from rxloop.cli.terminal import notify, report_errors, write
from rxloop.errors import ConfigurationError

NAME = "rxloop"
"""Skill name. The installed folder has the same name."""

_FILE = "SKILL.md"
_NAME_LINE = re.compile(rf"^name: {NAME}$", re.MULTILINE)


def skill(
    install: Annotated[
        Path | None,
        typer.Option("--install", metavar="DIR", help="Copy the skill to DIR/rxloop, for example to .claude/skills."),
    ] = None,
) -> None:
    """Show the folder of the skill for coding agents, or copy it to a project.

    The skill teaches coding agents to write, test and debug programs that use rxloop. Each version of rxloop contains
    the matching skill, so install it again after an update.
    """
    with report_errors():
        source = find_skill()
        if install is None:
            write(f"{source}\n")
            notify(f"rxloop skill --install .claude/skills copies the skill; its instructions are in {_FILE}")
        else:
            write(f"{copy_skill(source, install / NAME)}\n")


def find_skill() -> Path:
    """Return the folder of the skill in the installed package.

    Raises:
        ConfigurationError: The installation is incomplete.
    """
    folder = Path(rxloop.__file__).parent / "skill"
    if not (folder / _FILE).is_file():
        raise ConfigurationError(f"{folder / _FILE} is missing; reinstall rxloop")
    return folder


def copy_skill(source: Path, target: Path) -> Path:
    """Copy the skill to a folder, and return the folder. Update the files of an older version.

    Raises:
        ConfigurationError: The folder exists, but does not contain this skill, or it contains symbolic links.
    """
    if target.exists() and not _is_skill(target):
        raise ConfigurationError(f"{target} contains other files; remove it or choose another folder")
    # Projects of other people could contain links to private files, which copying would overwrite.
    links = [path for path in target.rglob("*") if path.is_symlink()]
    if links:
        raise ConfigurationError(f"{links[0]} must not be a symbolic link; remove {target} first")
    shutil.copytree(source, target, dirs_exist_ok=True)
    return target


def _is_skill(folder: Path) -> bool:
    file = folder / _FILE
    return file.is_file() and _NAME_LINE.search(file.read_text(encoding="utf-8", errors="replace")) is not None
