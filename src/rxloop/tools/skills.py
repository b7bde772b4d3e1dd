"""Skills with on-demand instructions."""

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

from rxloop._names import find_nearest
from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.json_data import replace_surrogates
from rxloop.support.safe_files import list_paths, open_path, read_range
from rxloop.support.threads import run_in_thread
from rxloop.support.yaml import InvalidYAML, import_yaml, load_yaml
from rxloop.tools.function import tool
from rxloop.tools.result import decode_range

FILE = "SKILL.md"

MAX_SKILLS = 200

MAX_SKILL_BYTES = 256_000
"""Maximum `SKILL.md` size in bytes. The format recommends at most 500 lines."""

_MAX_FRONT_MATTER_CHARS = 16_000

_MAX_NAME, _MAX_DESCRIPTION = 64, 1024

_MAX_ENTRIES = 5_000

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)

# Many authors omit the quotes required by YAML for values containing a colon.
_UNQUOTED = re.compile(r"^(description|compatibility):[ \t]+([^\s\"'>|\[{&*!#].*)$", re.MULTILINE)


class InvalidSkill(ValueError):
    """Invalid skill file. The message includes the reason."""


@dataclass(frozen=True, slots=True)
class Skill:
    """Name and description of a skill."""

    name: str
    description: str
    folder: str
    """Folder name of the skill."""


@dataclass(slots=True)
class SkillFolder:
    """Skills in a folder, with automatic reloading of changed files."""

    path: Path
    problems: list[str] = field(default_factory=list[str])
    """Problems from the most recent scan."""
    _read: dict[str, tuple[tuple[int, ...], Skill | str]] = field(
        default_factory=dict[str, tuple[tuple[int, ...], Skill | str]]
    )

    def scan(self) -> list[Skill]:
        """Scan the folder and return available skills.

        Skills whose name matches the folder are listed first.

        Raises:
            OSError: Unreadable folder.
        """
        self.problems = []
        skills: list[Skill] = []
        for name in self._folders():
            if len(skills) == MAX_SKILLS:
                self.problems.append(
                    f"{self.path / name} and later folders are skipped: the limit is {MAX_SKILLS} skills"
                )
                break
            try:
                skill = self._skill(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                skill = f"cannot be read: {error.strerror or error}"
            if isinstance(skill, str):
                self.problems.append(f"{self.path / name / FILE} is skipped: {skill}")
            else:
                skills.append(skill)
        return sorted(skills, key=lambda skill: skill.name != skill.folder)

    def body(self, skill: Skill) -> str:
        """Return the body of a skill.

        Raises:
            OSError: If the file cannot be read.
            InvalidSkill: If the file has become invalid.
        """
        with open_path(self.path, f"{skill.folder}/{FILE}") as handle:
            return split_front_matter(_read_text(handle))[1]

    def _folders(self) -> list[str]:
        names: list[str] = []
        with os.scandir(self.path) as entries:
            for count, entry in enumerate(entries):
                if count == _MAX_ENTRIES:
                    self.problems.append(f"{self.path} has more than {_MAX_ENTRIES} entries: the others are skipped")
                    break
                if entry.is_symlink():
                    # Link targets may be inaccessible.
                    with suppress(OSError):
                        if (self.path / entry.name / FILE).exists():
                            self.problems.append(
                                f"{self.path / entry.name} is skipped: symbolic links are not followed"
                            )
                elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
        return sorted(names)

    def _skill(self, name: str) -> Skill | str:
        with open_path(self.path, f"{name}/{FILE}") as handle:
            status = os.fstat(handle)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            cached = self._read.get(name)
            if cached is not None and cached[0] == stamp:
                return cached[1]
            try:
                skill: Skill | str = parse_skill(_read_text(handle), name)
            except InvalidSkill as error:
                skill = str(error)
        self._read[name] = stamp, skill
        return skill


def parse_skill(text: str, folder: str) -> Skill:
    """Parse a `SKILL.md` file.

    Args:
        text: File content.
        folder: Folder name.

    Raises:
        InvalidSkill: Invalid front matter.
    """
    fields = _parse_front_matter(split_front_matter(text)[0])
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str):
        raise InvalidSkill(f"`name` must be a string, got {_shorten(name)}")
    name = normalize("NFC", name.strip())
    if not 0 < len(name) <= _MAX_NAME or name != name.lower() or not all(part.isalnum() for part in name.split("-")):
        raise InvalidSkill(
            f"`name` must have 1 to {_MAX_NAME} lowercase letters, digits and single hyphens, got {_shorten(name)}"
        )
    if not isinstance(description, str) or not description.strip():
        raise InvalidSkill(
            f"`description` must be a string that says when to use the skill, got {_shorten(description)}"
        )
    if len(description.strip()) > _MAX_DESCRIPTION:
        raise InvalidSkill(f"`description` must have at most {_MAX_DESCRIPTION} characters, got {len(description)}")
    return Skill(name, replace_surrogates(" ".join(description.split())), folder)


def split_front_matter(text: str) -> tuple[str, str]:
    """Split a `SKILL.md` into front matter and body.

    Raises:
        InvalidSkill: If the file has no front matter.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        raise InvalidSkill("it must start with front matter between two lines of ---")
    return match[1], text[match.end() :].strip()


def _parse_front_matter(front: str) -> Mapping[str, Any]:
    if len(front) > _MAX_FRONT_MATTER_CHARS:
        raise InvalidSkill(f"the front matter must have at most {_MAX_FRONT_MATTER_CHARS} characters, got {len(front)}")
    quoted = _UNQUOTED.sub(lambda line: f"{line[1]}: {json.dumps(line[2].rstrip(), ensure_ascii=False)}", front)
    try:
        try:
            fields = load_yaml(front, first_line=2)
        except InvalidYAML:
            fields = load_yaml(quoted, first_line=2)
    except InvalidYAML as error:
        raise InvalidSkill(f"the front matter is not valid YAML: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidSkill("the front matter must have fields such as `name: my-skill`")
    return cast("dict[str, Any]", fields)


def _read_text(handle: int) -> str:
    data = read_range(handle, 0, MAX_SKILL_BYTES + 1)
    if len(data) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"it must have at most {MAX_SKILL_BYTES // 1000} kB; move parts to other files of the skill")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidSkill(f"it is not UTF-8: {error.reason} at byte {error.start}") from None


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


log = logging.getLogger("rxloop")

LEARN, READ = "learn_skill", "read_skill_file"

_MAX_TOOL_DESCRIPTION = 1024
"""Maximum tool description length supported by all vendors. Parameter descriptions can be longer."""

_MAX_FILES = 2_000

_MAX_LISTED = 50

_MAX_READ = 50_000


class Skills:
    """Toolset for learning skills and reading their files. Created by `skills`."""

    name = "skills"

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [SkillFolder(path) for path in folders]
        self._skills: dict[str, tuple[SkillFolder, Skill]] = {}
        self._cached: tuple[list[tuple[str, str]], list[Tool]] = ([], [])
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<skills of {', '.join(str(folder.path) for folder in self._folders)}>"

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        """Rescan the folders and return skill tools, if any skills exist."""
        return await run_in_thread(self._scan)

    def _scan(self) -> list[Tool]:
        by_name: dict[str, tuple[SkillFolder, Skill]] = {}
        for folder in self._folders:
            for skill in folder.scan():
                if skill.name in by_name:
                    folder.problems.append(
                        f"{folder.path / skill.folder / FILE} is skipped: an earlier skill is also named {skill.name!r}"
                    )
                else:
                    by_name[skill.name] = folder, skill
            for problem in folder.problems:
                if problem not in self._warned:
                    self._warned.add(problem)
                    log.warning("Problem with a skill: %s", problem)
        self._skills = by_name
        # Sorted by name, so that the list stays in the prompt cache of the provider.
        entries = [(name, by_name[name][1].description) for name in sorted(by_name)]
        if entries != self._cached[0]:
            self._cached = entries, self._make_tools(entries) if entries else []
        return self._cached[1]

    def _make_tools(self, entries: list[tuple[str, str]]) -> list[Tool]:
        """Create skill tools with skill names in the description."""
        skill_list = "\n".join(f"- {name}: {description}" for name, description in entries)
        intro = (
            "Learns a skill: instructions for a kind of task. Learn one that fits before you begin. The skills are:\n"
        )
        fits = len(intro) + len(skill_list) <= _MAX_TOOL_DESCRIPTION
        about = "The name of the skill." if fits else f"The name of one of these skills:\n{skill_list}"

        @tool(
            name=LEARN,
            description=intro + (skill_list if fits else "those that the parameter `name` lists."),
            idempotent=True,
            read_only=True,
        )
        async def learn_skill(name: Annotated[str, Field(description=about)]) -> str:
            return await run_in_thread(lambda: self._learn(name))

        @tool(
            name=READ,
            description="Read a file of a skill, or a part of it.",
            idempotent=True,
            read_only=True,
            max_result=None,
        )
        async def read_skill_file(
            skill: Annotated[str, Field(description="The name of the skill.")],
            path: Annotated[str, Field(description="The path of the file in the skill, such as references/api.md.")],
            offset: Annotated[int, Field(description="The first byte to read.", ge=0)] = 0,
            limit: Annotated[int, Field(description="Maximum number of bytes.", ge=1, le=_MAX_READ)] = 20_000,
        ) -> str:
            return await run_in_thread(lambda: self._read(skill, path, offset, limit))

        return [learn_skill, read_skill_file]

    def _learn(self, name: str) -> str:
        folder, skill = self._skill(name)
        try:
            body = folder.body(skill)
            files = _files(folder, skill)
        except (OSError, InvalidSkill) as error:
            raise ToolError(f"The skill {skill.name!r} cannot be read: {error}.") from error
        return f"{body}\n\n[Files of this skill, for {READ}: {_format_files(files)}]" if files else body

    def _read(self, name: str, path: str, offset: int, limit: int) -> str:
        folder, skill = self._skill(name)
        parts = path.removeprefix("./").split("/")
        # Hidden files such as `.env` and `.git` are not listed either.
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
            raise ToolError(_describe_missing_file(folder, skill, path)) from error
        reaches_end = len(data) <= limit
        data = data[:limit]
        text = decode_range(data, first=offset == 0, last=reaches_end)
        if text is None:
            raise ToolError(f"{path!r} is not text.")
        begin, content = text
        if reaches_end and offset == 0:
            return content
        end = offset + begin + len(content.encode())
        suffix = "the end of it" if reaches_end else f"read on with offset={end}"
        return f"[bytes {offset + begin} to {end} of {path}; {suffix}]\n{content}"

    def _skill(self, name: str) -> tuple[SkillFolder, Skill]:
        entry = self._skills.get(name.strip())
        if entry is None:
            closest = find_nearest(name, self._skills)
            hint = f" Did you mean {closest!r}?" if closest is not None else ""
            raise ToolError(f"There is no skill {name!r}.{hint} The skills are: {', '.join(sorted(self._skills))}.")
        return entry


def skills(*folders: str | PathLike[str]) -> Skills:
    """Create a toolset for skills: instructions that a model reads when it needs them.

    Each skill is a folder with a `SKILL.md` in the open format of https://agentskills.io: front matter with `name` and
    `description`, and a body. The model sees names and descriptions, `learn_skill` returns the body, and
    `read_skill_file` reads the other files of the skill. Invalid skills are skipped with a warning. The folders are
    scanned before each model call, and changed files are read again. Symbolic links are not followed.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=[skills("skills/")])

    Args:
        folders: Folders of skills. If two skills have the same name, the first one is used.

    Raises:
        ConfigurationError: If no folder is passed, a path is not a folder, or the extra `yaml` is not installed.
    """
    paths = [Path(folder).absolute() for folder in folders]
    if not paths:
        raise ConfigurationError('skills() needs a folder, such as skills("skills/")')
    for path in paths:
        if not path.is_dir():
            raise ConfigurationError(f"{path} must be a folder that contains a folder for each skill")
    import_yaml("Reading skills")
    return Skills(paths)


def _files(folder: SkillFolder, skill: Skill) -> list[str]:
    """List all files of a skill, excluding `SKILL.md`."""
    names, _ = list_paths(folder.path, skill.folder, max_entries=_MAX_FILES)
    own = [name.removeprefix(f"{skill.folder}/") for name in names]
    return [name for name in own if name != FILE]


def _format_files(files: Sequence[str]) -> str:
    suffix = f", and {len(files) - _MAX_LISTED} more" if len(files) > _MAX_LISTED else ""
    return ", ".join(files[:_MAX_LISTED]) + suffix


def _describe_missing_file(folder: SkillFolder, skill: Skill, path: str) -> str:
    try:
        files = [*_files(folder, skill), FILE]
    except OSError as error:
        return f"The skill {skill.name!r} cannot be read: {error}."
    folded = {name.casefold(): name for name in files}
    closest = get_close_matches(path.casefold(), folded, n=1)
    hint = f" Did you mean {folded[closest[0]]!r}?" if closest else ""
    return f"The skill {skill.name!r} has no file {path!r}.{hint} It has: {_format_files(files)}."
