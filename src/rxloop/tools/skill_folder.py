"""Skills read from the files of a folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unicodedata import normalize

from rxloop.protocol.json_data import replace_surrogates
from rxloop.support.safe_files import open_path, read_at
from rxloop.support.yaml import InvalidYAML, load_yaml

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
    data = read_at(handle, 0, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadSkill(f"it is larger than {MOST_BYTES // 1000} kB: put a part of it into files beside it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadSkill(f"it is not UTF-8: {error.reason} at byte {error.start}") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
