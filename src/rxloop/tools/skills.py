"""Skills that the model loads when it needs them."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, cast
from unicodedata import normalize

from pydantic import Field

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.json_data import replace_surrogates
from rxloop.support.safe_files import list_paths, open_path, read_range
from rxloop.support.threads import run_in_thread
from rxloop.support.yaml import InvalidYAML, import_yaml, load_yaml
from rxloop.tools.agent_tools import nearest
from rxloop.tools.function import tool
from rxloop.tools.result import text_of

FILE = "SKILL.md"

MOST_SKILLS = 200

MOST_BYTES = 256_000
"""Of a `SKILL.md`; the format recommends 500 lines at most."""

_FRONT = 16_000

_NAME, _DESCRIPTION = 64, 1024

_MOST_SEEN = 5_000

_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)

# A description with a colon in it needs quotes in YAML; many are written without.
_UNQUOTED = re.compile(r"^(description|compatibility):[ \t]+([^\s\"'>|\[{&*!#].*)$", re.MULTILINE)


class BadSkill(ValueError):
    """A skill cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill, without what it teaches."""

    name: str
    description: str
    folder: str
    """The name of its folder."""


@dataclass(slots=True)
class SkillFolder:
    """The skills of one folder, each read again when its file has changed.

    Attributes:
        path: The folder.
        problems: What was wrong at the last look.
    """

    path: Path
    problems: list[str] = field(default_factory=list[str])
    _read: dict[str, tuple[tuple[int, ...], Skill | str]] = field(
        default_factory=dict[str, tuple[tuple[int, ...], Skill | str]]
    )

    def look(self) -> list[Skill]:
        """Find the skills that there are now; those that are named as their folders are come first.

        Raises:
            OSError: The folder cannot be read.
        """
        self.problems = []
        skills: list[Skill] = []
        for name in self._folders():
            if len(skills) == MOST_SKILLS:
                self.problems.append(f"{self.path / name} and what follows is left out: there are {MOST_SKILLS} skills")
                break
            try:
                found = self._skill(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                found = f"it cannot be read: {error.strerror or error}"
            if isinstance(found, str):
                self.problems.append(f"{self.path / name / FILE} is left out: {found}")
            else:
                skills.append(found)
        return sorted(skills, key=lambda skill: skill.name != skill.folder)

    def body(self, skill: Skill) -> str:
        """Read what a skill teaches.

        Raises:
            OSError: It cannot be read.
            BadSkill: It cannot be used any more.
        """
        with open_path(self.path, f"{skill.folder}/{FILE}") as handle:
            return parted(_text(handle))[1]

    def _folders(self) -> list[str]:
        names: list[str] = []
        with os.scandir(self.path) as entries:
            for seen, entry in enumerate(entries):
                if seen == _MOST_SEEN:
                    self.problems.append(f"{self.path} has more than {_MOST_SEEN} entries: the others are left out")
                    break
                if entry.is_symlink():
                    # Some lead to what cannot even be looked at.
                    with suppress(OSError):
                        if (self.path / entry.name / FILE).exists():
                            self.problems.append(f"{self.path / entry.name} is left out: a link, and none is followed")
                elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
        return sorted(names)

    def _skill(self, name: str) -> Skill | str:
        with open_path(self.path, f"{name}/{FILE}") as handle:
            found = os.fstat(handle)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            known = self._read.get(name)
            if known is not None and known[0] == stamp:
                return known[1]
            try:
                skill: Skill | str = skill_of(_text(handle), name)
            except BadSkill as error:
                skill = str(error)
        self._read[name] = stamp, skill
        return skill


def skill_of(text: str, folder: str) -> Skill:
    """Read a `SKILL.md`.

    Args:
        text: What it holds.
        folder: The name of its folder.

    Raises:
        BadSkill: It breaks a rule of the format.
    """
    fields = _fields(parted(text)[0])
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str):
        raise BadSkill(f"its `name` is {_short(name)}, and has to be a text")
    name = normalize("NFC", name.strip())
    if not 0 < len(name) <= _NAME or name != name.lower() or not all(part.isalnum() for part in name.split("-")):
        raise BadSkill(
            f"its name {_short(name)} has to be of 1 to {_NAME} small letters, digits and single hyphens between them"
        )
    if not isinstance(description, str) or not description.strip():
        raise BadSkill(f"its `description` is {_short(description)}, and has to say what it is for, and when")
    if len(description.strip()) > _DESCRIPTION:
        raise BadSkill(f"its description has {len(description)} characters: {_DESCRIPTION} are allowed")
    return Skill(name, replace_surrogates(" ".join(description.split())), folder)


def parted(text: str) -> tuple[str, str]:
    """Part a `SKILL.md` into its front matter and its body.

    Raises:
        BadSkill: It has no front matter.
    """
    found = _MATTER.match(text)
    if found is None:
        raise BadSkill("it has to begin with a front matter, between two lines of ---")
    return found[1], text[found.end() :].strip()


def _fields(front: str) -> Mapping[str, Any]:
    if len(front) > _FRONT:
        raise BadSkill(f"its front matter has more than {_FRONT} characters")
    quoted = _UNQUOTED.sub(lambda line: f"{line[1]}: {json.dumps(line[2].rstrip(), ensure_ascii=False)}", front)
    try:
        try:
            fields = load_yaml(front, first_line=2)
        except InvalidYAML:
            fields = load_yaml(quoted, first_line=2)
    except InvalidYAML as error:
        raise BadSkill(f"its front matter is not YAML: {error}") from None
    if not isinstance(fields, dict):
        raise BadSkill("its front matter has to be fields, such as `name: my-skill`")
    return cast("dict[str, Any]", fields)


def _text(handle: int) -> str:
    data = read_range(handle, 0, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadSkill(f"it is larger than {MOST_BYTES // 1000} kB: put a part of it into files beside it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadSkill(f"it is not UTF-8: {error.reason} at byte {error.start}") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


log = logging.getLogger("rxloop")

LEARN, READ = "learn_skill", "read_skill_file"

_DESCRIBED = 1024
"""Characters of the description of a tool that every vendor takes; that of a parameter may be longer."""

_MOST_FILES = 2_000

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
                data = read_range(handle, offset, offset + limit + 1)
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
    names, _ = list_paths(folder.path, skill.folder, max_entries=_MOST_FILES)
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
