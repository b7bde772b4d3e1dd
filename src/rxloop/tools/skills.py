"""Skills that the model loads when it needs them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.support.safe_files import list_paths, open_path, read_at
from rxloop.support.threads import run_in_thread
from rxloop.support.yaml import import_yaml
from rxloop.tools.agent_tools import nearest
from rxloop.tools.function import tool
from rxloop.tools.result import text_of
from rxloop.tools.skill_folder import FILE, BadSkill, Skill, SkillFolder

log = logging.getLogger("rxloop")

LEARN, READ = "learn_skill", "read_skill_file"

_DESCRIBED = 1024
"""Characters of the description of a tool that every vendor takes; that of a parameter may be longer."""

_MOST_SEEN = 2_000

_LISTED = 50

_MOST_READ = 50_000


class Skills:
    """A family of tools by which a model learns skills and reads their files; `skills` makes it."""

    name = "skills"

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [SkillFolder(path) for path in folders]
        self._found: dict[str, tuple[SkillFolder, Skill]] = {}
        self._offered: tuple[list[tuple[str, str]], list[Tool]] = ([], [])
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<skills of {', '.join(str(folder.path) for folder in self._folders)}>"

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        """Look at the folders, and return the tools for the skills that there are now; none where there are none."""
        return await run_in_thread(self._look)

    def _look(self) -> list[Tool]:
        found: dict[str, tuple[SkillFolder, Skill]] = {}
        for folder in self._folders:
            for skill in folder.look():
                if skill.name in found:
                    folder.problems.append(
                        f"{folder.path / skill.folder / FILE} is left out: there is a skill {skill.name!r} before it"
                    )
                else:
                    found[skill.name] = folder, skill
            for problem in folder.problems:
                if problem not in self._warned:
                    self._warned.add(problem)
                    log.warning("skill %s", problem)
        self._found = found
        # In the order of their names, so that the provider's cache keeps the list.
        listed = [(name, found[name][1].description) for name in sorted(found)]
        if listed != self._offered[0]:
            self._offered = listed, self._made(listed) if listed else []
        return self._offered[1]

    def _made(self, listed: list[tuple[str, str]]) -> list[Tool]:
        """Make the tools, with the list of the skills in what the model reads of them."""
        about = "\n".join(f"- {name}: {description}" for name, description in listed)
        intro = (
            "Learns a skill: instructions for a kind of task. Learn one that fits before you begin. The skills are:\n"
        )
        fits = len(intro) + len(about) <= _DESCRIBED
        names = "The name of the skill." if fits else f"The name of one of these skills:\n{about}"

        @tool(
            name=LEARN,
            description=intro + (about if fits else "those that the parameter `name` lists."),
            idempotent=True,
            read_only=True,
        )
        async def learn_skill(name: Annotated[str, Field(description=names)]) -> str:
            return await run_in_thread(lambda: self._learn(name))

        @tool(
            name=READ,
            description="Reads a file of a skill that you have learned, or a part of it.",
            idempotent=True,
            read_only=True,
            max_result=None,
        )
        async def read_skill_file(
            skill: Annotated[str, Field(description="The name of the skill.")],
            path: Annotated[str, Field(description="The path of the file in the skill, such as references/api.md.")],
            offset: Annotated[int, Field(description="The first byte to read.", ge=0)] = 0,
            limit: Annotated[int, Field(description="How many bytes to read at most.", ge=1, le=_MOST_READ)] = 20_000,
        ) -> str:
            return await run_in_thread(lambda: self._read(skill, path, offset, limit))

        return [learn_skill, read_skill_file]

    def _learn(self, name: str) -> str:
        folder, skill = self._skill(name)
        try:
            body = folder.body(skill)
            files = _files(folder, skill)
        except (OSError, BadSkill) as error:
            raise ToolError(f"The skill {skill.name!r} cannot be read: {error}.") from error
        return f"{body}\n\n[Files of this skill, for {READ}: {_listed(files)}]" if files else body

    def _read(self, name: str, path: str, offset: int, limit: int) -> str:
        folder, skill = self._skill(name)
        parts = path.removeprefix("./").split("/")
        # What begins with a dot is not listed either: `.env`, `.git`.
        if (
            any(not part or part.startswith(".") for part in parts)
            or not path.isprintable()
            or "\\" in path
            or ":" in path
        ):
            raise ToolError(f"{path!r} is not a path in the skill: give one such as 'references/api.md'.")
        try:
            with open_path(folder.path, f"{skill.folder}/{'/'.join(parts)}") as handle:
                data = read_at(handle, offset, offset + limit + 1)
        except (OSError, ValueError) as error:
            raise ToolError(_no_file(folder, skill, path)) from error
        whole = len(data) <= limit
        data = data[:limit]
        text = text_of(data, first=offset == 0, whole=whole)
        if text is None:
            raise ToolError(f"{path!r} is not text.")
        begin, shown = text
        if whole and offset == 0:
            return shown
        end = offset + begin + len(shown.encode())
        more = "the end of it" if whole else f"read on with offset={end}"
        return f"[bytes {offset + begin} to {end} of {path}; {more}]\n{shown}"

    def _skill(self, name: str) -> tuple[SkillFolder, Skill]:
        found = self._found.get(name.strip())
        if found is None:
            near = nearest(name, self._found)
            meant = f" Did you mean {near!r}?" if near is not None else ""
            raise ToolError(f"There is no skill {name!r}.{meant} The skills are: {', '.join(sorted(self._found))}.")
        return found


def skills(*folders: str | PathLike[str]) -> Skills:
    """Make a family of tools by which a model learns skills: instructions that it reads when it needs them.

    Each skill is a folder with a `SKILL.md` in the open format of https://agentskills.io: a front matter with `name`
    and `description`, and a body. The model sees names and descriptions, `learn_skill` puts a body into the history,
    and `read_skill_file` reads the files beside it. A skill that breaks a rule of the format is left out, with a
    warning. The folders are looked at before each model call, and what has changed is read again. No link is followed.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=[skills("skills/")])

    Args:
        folders: Each with skills in it; of two skills of one name the first counts.

    Raises:
        ConfigurationError: One of them is not a folder, none is given, or the extra `yaml` is not installed.
    """
    paths = [Path(folder).absolute() for folder in folders]
    if not paths:
        raise ConfigurationError('skills() needs a folder, such as skills("skills/")')
    for path in paths:
        if not path.is_dir():
            raise ConfigurationError(f"{path} is not a folder: give one with a folder for each skill in it")
    import_yaml("Reading skills")
    return Skills(paths)


def _files(folder: SkillFolder, skill: Skill) -> list[str]:
    """List the files of a skill beside its `SKILL.md`, by their paths in it."""
    names, _ = list_paths(folder.path, skill.folder, most=_MOST_SEEN)
    own = [name.removeprefix(f"{skill.folder}/") for name in names]
    return [name for name in own if name != FILE]


def _listed(files: Sequence[str]) -> str:
    more = f", and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
    return ", ".join(files[:_LISTED]) + more


def _no_file(folder: SkillFolder, skill: Skill, path: str) -> str:
    try:
        files = [*_files(folder, skill), FILE]
    except OSError as error:
        return f"The skill {skill.name!r} cannot be read: {error}."
    plain = {name.casefold(): name for name in files}
    near = get_close_matches(path.casefold(), plain, n=1)
    meant = f" Did you mean {plain[near[0]]!r}?" if near else ""
    return f"The skill {skill.name!r} has no file {path!r}.{meant} It has: {_listed(files)}."
