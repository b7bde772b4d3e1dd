"""The package as users get it: the archives, what they bring with them, and what an import costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "src/rxloop/_version.py").read_text(encoding="utf-8"))
OPTIONAL = ("click", "fastapi", "hypothesis", "pytest", "rich", "starlette", "typer", "uvicorn")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed in it, without its dependencies."""
    folder = tmp_path_factory.mktemp("site")
    [wheel] = archives.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel), cwd=folder)
    return folder


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_wheel(archives: Path) -> set[str]:
    [wheel] = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_of_sdist(archives: Path) -> set[str]:
    [sdist] = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def modules() -> set[str]:
    source = ROOT / "src"
    return {path.relative_to(source).as_posix() for path in source.rglob("*.py")}


def test_the_wheel_holds_every_module_and_the_typing_marker_and_nothing_else(archives: Path) -> None:
    assert {name for name in files_of_wheel(archives) if ".dist-info/" not in name} == modules() | {"rxloop/py.typed"}


def test_the_wheel_carries_the_licence(archives: Path) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files_of_wheel(archives))


def test_the_sdist_holds_the_sources_the_tests_and_the_examples(archives: Path) -> None:
    files = files_of_sdist(archives)
    assert {f"src/{name}" for name in modules()} <= files
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "src/rxloop/py.typed"} <= files
    assert f"tests/{Path(__file__).name}" in files


def test_the_sdist_has_no_second_copy_behind_the_links(archives: Path) -> None:
    tops = {name.partition("/")[0] for name in files_of_sdist(archives)}
    assert tops & {"operators", "providers"} == set()


@pytest.mark.parametrize("link", ["operators", "providers"])
def test_the_links_at_the_top_are_relative_and_lead_into_the_package(link: str) -> None:
    assert (ROOT / link).readlink() == Path("src/rxloop", link)
    assert (ROOT / link).is_dir()


def test_the_wheel_works_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    code = "import rxloop; print(rxloop.__file__, rxloop.__version__)"
    where, version = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).split()
    assert Path(where).is_relative_to(installed)
    assert VERSION is not None
    assert version == VERSION[1] == metadata(installed).version


def test_the_wheel_asks_for_what_the_project_file_asks_for(installed: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert needs(metadata(installed)) == {name_of(Requirement(line)) for line in project["dependencies"]}


def test_an_installation_has_at_most_fifteen_packages_besides_rxloop(installed: Path) -> None:
    found: set[str] = set()
    waiting = needs(metadata(installed))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= needs(distribution(name)) - found
    assert len(found) <= 15, sorted(found)


def metadata(installed: Path) -> Distribution:
    [folder] = installed.glob("rxloop-*.dist-info")
    return PathDistribution(folder)


def needs(package: Distribution) -> set[str]:
    """The packages that one package needs on this machine, its extras left out."""
    requirements = [Requirement(line) for line in package.requires or ()]
    return {name_of(need) for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})}


def name_of(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def test_importing_rxloop_needs_no_optional_package(tmp_path: Path) -> None:
    # What is None in sys.modules cannot be imported, as if it were not installed.
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import rxloop; print('imported')"
    assert run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT / "src")) == "imported\n"


def test_importing_rxloop_leaves_heavy_modules_alone(tmp_path: Path) -> None:
    # httpx imports rich and click by itself wherever they happen to be installed.
    code = "import sys, httpx; before = {*sys.modules}; import rxloop; print(*{*sys.modules} - before)"
    brought = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT / "src")).split()
    assert "rxloop" in brought
    heavy = {*OPTIONAL, "http", "multiprocessing", "sqlite3", "tkinter", "unittest"}
    assert {name.partition(".")[0] for name in brought} & heavy == set()
