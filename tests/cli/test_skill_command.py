"""The command `skill`, and the skill for coding agents in `src/rxloop/skill`.

`tests/test_documents.py` executes the Python blocks of the skill.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rxloop import Agent, skills
from rxloop.cli.app import app
from rxloop.cli.commands.skill import find_skill
from rxloop.testing import ScriptedModel, call
from support.cli_workspace import Workspace

SKILL = find_skill()
PAGES = sorted(SKILL.rglob("*.md"))
BLOCKS = "\n".join(
    block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
)
LINES = re.findall(r"^(?:\w+=\S+ )*rxloop (.*?)(?: +#.*)?$", BLOCKS, re.MULTILINE)


def test_folder_of_the_skill_is_printed(workspace: Workspace) -> None:
    assert workspace.run("skill").stdout == f"{SKILL}\n"


def test_installed_skill_is_a_complete_copy(workspace: Workspace, tmp_path: Path) -> None:
    assert workspace.run("skill", "--install", ".claude/skills").stdout == ".claude/skills/rxloop\n"
    copy = tmp_path / ".claude/skills/rxloop"
    assert [path.relative_to(copy) for path in sorted(copy.rglob("*.md"))] == [
        path.relative_to(SKILL) for path in PAGES
    ]
    assert (copy / "SKILL.md").read_bytes() == (SKILL / "SKILL.md").read_bytes()


async def test_installed_skill_is_readable_by_an_agent(workspace: Workspace, tmp_path: Path) -> None:
    workspace.run("skill", "--install", "skills")
    model = ScriptedModel(
        call("learn_skill", name="rxloop"),
        call("read_skill_file", skill="rxloop", path="references/testing.md"),
        "I know rxloop.",
    )
    result = await Agent(model, tools=[skills(tmp_path / "skills")]).run("Learn rxloop")
    assert "# rxloop" in result.messages[2].text
    assert "# Testing" in result.messages[4].text


def test_install_replaces_an_earlier_version(workspace: Workspace, tmp_path: Path) -> None:
    workspace.run("skill", "--install", ".")
    (tmp_path / "rxloop/SKILL.md").write_text("---\nname: rxloop\n---\nOld.\n", encoding="utf-8")
    workspace.run("skill", "--install", ".")
    assert (tmp_path / "rxloop/SKILL.md").read_bytes() == (SKILL / "SKILL.md").read_bytes()


def test_install_does_not_overwrite_other_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "rxloop").mkdir()
    (tmp_path / "rxloop/SKILL.md").write_text("---\nname: other\n---\n", encoding="utf-8")
    failed = workspace.run("skill", "--install", ".", code=2)
    assert failed.stderr == ("rxloop: rxloop contains other files; remove it or choose another folder\n")
    assert (tmp_path / "rxloop/SKILL.md").read_text(encoding="utf-8") == "---\nname: other\n---\n"


@pytest.mark.parametrize("name", ["references", "references/testing.md"])
def test_install_does_not_write_through_symbolic_links(workspace: Workspace, tmp_path: Path, name: str) -> None:
    workspace.run("skill", "--install", ".")
    linked = tmp_path / "rxloop" / name
    private = linked.rename(tmp_path / "private")
    linked.symlink_to(private)
    file = private / "testing.md" if private.is_dir() else private
    file.write_text("private", encoding="utf-8")
    failed = workspace.run("skill", "--install", ".", code=2)
    assert failed.stderr == f"rxloop: rxloop/{name} must not be a symbolic link; remove rxloop first\n"
    assert file.read_text(encoding="utf-8") == "private"


def test_pages_of_the_skill_have_at_most_500_lines() -> None:
    assert [page.name for page in PAGES if len(page.read_text(encoding="utf-8").splitlines()) > 500] == []


@pytest.mark.parametrize("line", LINES)
def test_command_line_in_the_skill_is_valid(line: str) -> None:
    name, *arguments = shlex.split(line)
    command: Any = get_command(app)
    command.get_command(None, name).make_context(name, arguments)
