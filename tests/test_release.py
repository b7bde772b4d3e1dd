"""Checks of `scripts/release`, and files that describe the project on GitHub."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from rxloop import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
METADATA = """\
Metadata-Version: 2.4
Name: rxloop
Version: 1.0
Summary: Agents
Keywords: agents
License-Expression: MIT
License-File: LICENSE
Classifier: Typing :: Typed
Requires-Python: >=3.11
Description-Content-Type: text/markdown

# rxloop
"""


@pytest.fixture(scope="module")
def release() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_version_problems_are_empty_when_changelog_and_citation_agree(release: Any) -> None:
    changelog = "# Changelog\n\n## [1.0] - 2026-11-27\n\n## [0.9] - 2026-11-01\n"
    assert release.find_version_problems("1.0", changelog, "title: rxloop\nversion: 1.0\nlicense: MIT\n") == []


@pytest.mark.parametrize("section", ["", "## [Unreleased]", "## [1.0]", "## [0.9] - 2026-11-01"])
def test_version_problems_contain_an_old_changelog_and_citation(release: Any, section: str) -> None:
    problems = release.find_version_problems("1.0", f"# Changelog\n\n{section}\n", "title: rxloop\nversion: 1.0.1\n")
    assert [problem.partition(" must ")[0] for problem in problems] == ["CHANGELOG.md", "CITATION.cff"]


def test_tree_problems_contain_changes_and_the_tag_of_the_version(release: Any, tmp_path: Path) -> None:
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
    for command in (("init", "--quiet"), (*identity, "commit", "--quiet", "--allow-empty", "--message", "Start")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert release.find_tree_problems(tmp_path, "1.0") == []
    (tmp_path / "notes.txt").touch()
    subprocess.run(["git", *identity, "tag", "v1.0"], cwd=tmp_path, check=True)
    assert release.find_tree_problems(tmp_path, "1.0") == ["uncommitted change: ?? notes.txt", "the tag v1.0 exists"]


def test_content_problems_contain_caches_and_paths_of_this_machine(release: Any) -> None:
    files = {"a.py": b"", "b/__pycache__/c.pyc": b"", "support.db": b"", ".venv-demo/stamp": b"", "d": b"/home/ann/d"}
    problems = release.find_content_problems(files, ["/home/ann/"])
    assert {problem.rpartition(" ")[2] for problem in problems} == {*files} - {"a.py"}


def test_metadata_problems_are_empty_for_valid_metadata(release: Any) -> None:
    assert release.find_metadata_problems(METADATA.encode(), "1.0", "# rxloop\n") == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Version: 1.0", "Version: 1.1", "version must be '1.0', got '1.1'"),
        ("# rxloop", "# Agents", "description must be"),
        ("text/markdown", "text/plain", "description type must be"),
        ("License-File: LICENSE\n", "", "licence files must be"),
        ("Typing :: Typed", "Typing :: Strict", "unknown classifier: Typing :: Strict"),
        ("Keywords: agents\n", "", "keywords must not be empty"),
        ("Summary: Agents\n", "Summary: Agents\nLicense: MIT License\nColour: blue\n", "colour"),
    ],
)
def test_metadata_problems_name_the_invalid_field(release: Any, old: str, new: str, problem: str) -> None:
    [found] = release.find_metadata_problems(METADATA.replace(old, new).encode(), "1.0", "# rxloop")
    assert problem in found


def test_citation_agrees_with_the_package() -> None:
    citation = yaml.safe_load(CITATION)
    assert f"\nversion: {__version__}\n" in CITATION
    assert {*citation} >= {"cff-version", "message", "title", "authors"}
    assert (citation["cff-version"], citation["title"]) == ("1.2.0", PROJECT["name"])
    assert (citation["license"], citation["authors"]) == (PROJECT["license"], PROJECT["authors"])


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.stem)
def test_issue_form_has_the_structure_that_github_requires(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {*content} == {"name", "description", "labels", "body"}
    inputs = [element for element in content["body"] if element["type"] != "markdown"]
    assert {element["type"] for element in inputs} == {"textarea"}
    assert all(element["attributes"]["label"] for element in inputs)
    identifiers = [element["id"] for element in inputs]
    assert len({*identifiers}) == len(identifiers) > 0
