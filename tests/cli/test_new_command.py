"""Command `new`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from rxloop.cli.commands.new import Template
from rxloop.cli.installation import is_from_index, make_install_command
from support.cli_workspace import SOURCE, Workspace


def create_project(workspace: Workspace, template: str, name: str = "my-shop") -> Path:
    done = workspace.run("new", name, "--template", template)
    assert done.stdout == f"{name}\n"
    return workspace.folder / name


@pytest.mark.parametrize("template", list(Template))
def test_tests_of_the_project_pass(workspace: Workspace, template: Template) -> None:
    folder = create_project(workspace, template)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names >= {"README.md", "pyproject.toml", ".gitignore", "my_shop.py", "tests/test_my_shop.py"}
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_asyncio.plugin",
    ]
    env = {**workspace.env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("template", list(Template))
def test_project_has_no_placeholders_and_uses_existing_extras(workspace: Workspace, template: Template) -> None:
    folder = create_project(workspace, template)
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if re.search(r"@[A-Z]+@", text + path.name)] == []
    project: Any = tomllib.loads(texts[folder / "pyproject.toml"])["project"]
    assert project["name"] == "my-shop"
    own: Any = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = re.findall(r"[a-z]+", project["dependencies"][0].partition("[")[2])
    assert extras
    assert set(extras) <= set(own)


def test_install_command_is_shown_if_projects_cannot_find_rxloop_by_name(workspace: Workspace) -> None:
    done = workspace.run("new", "my-shop", "--template", "worker")
    assert (f"run {make_install_command('serve,postgres')} first" in done.stderr) is not is_from_index()


def test_agent_of_the_project_can_be_run(workspace: Workspace) -> None:
    folder = create_project(workspace, "agent")
    done = workspace.run("run", "2 + 2", "--agent", f"{folder}/my_shop.py:agent", "--model", f"{workspace.url}#demo")
    assert "completed" in done.stderr
    assert workspace.rows()[0]["agentName"] == "my-shop"


def test_compose_file_starts_a_database_servers_and_workers(workspace: Workspace) -> None:
    folder = create_project(workspace, "worker")
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert set(services) == {"postgres", "server", "worker"}
    assert "/" not in services["postgres"]["image"]
    assert services["worker"]["command"].startswith("rxloop worker my_shop:agents")
    assert services["server"]["environment"] == services["worker"]["environment"]


def test_existing_folder_is_not_changed(workspace: Workspace) -> None:
    folder = create_project(workspace, "agent")
    (folder / "README.md").write_text("mine")
    workspace.run("new", "my-shop", "--template", "service", code=2)
    assert (folder / "README.md").read_text() == "mine"


@pytest.mark.parametrize("name", ["json", "rxloop", "Shop", "../shop", "my--shop", ""])
def test_invalid_name_is_rejected(workspace: Workspace, name: str) -> None:
    done = workspace.run("new", name, code=2)
    assert repr(name) in done.stderr
    assert not (workspace.folder / name / "README.md").exists()
