"""Content, dependencies and import cost of the distributions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "src/rxloop/_version.py").read_text(encoding="utf-8"))
OPTIONAL = ("click", "fastapi", "hypothesis", "pytest", "rich", "starlette", "typer", "uvicorn")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the installed wheel, without dependencies."""
    folder = tmp_path_factory.mktemp("site")
    [wheel] = archives.glob("*.whl")
    # pip would take several seconds to do the same.
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def list_wheel_files(archives: Path) -> set[str]:
    [wheel] = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def list_sdist_files(archives: Path) -> set[str]:
    [sdist] = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def list_source_files() -> set[str]:
    source = ROOT / "src"
    files = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    names = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    # The wheel contains the built viewer page instead of its sources.
    return {name for name in names if not name.startswith("rxloop/server/viewer/page/")}


def test_wheel_contains_only_the_files_of_the_packages_and_the_demo(archives: Path) -> None:
    files = {name for name in list_wheel_files(archives) if ".dist-info/" not in name}
    assert files == list_source_files() | {"rxloop/demo/kitchen_sink.py"}
    assert "rxloop/cli/templates/worker/compose.yaml.tmpl" in files


def test_wheel_contains_the_licence(archives: Path) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in list_wheel_files(archives))


def test_sdist_contains_sources_tests_and_examples(archives: Path) -> None:
    files = list_sdist_files(archives)
    assert {f"src/{name}" for name in list_source_files()} <= files
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "docs/index.md"} <= files
    assert {f"tests/{Path(__file__).name}", "examples/kitchen_sink.py", "scripts/demo"} <= files


def test_distributions_pass_the_checks_of_a_release(archives: Path) -> None:
    [sdist], [wheel] = archives.glob("*.tar.gz"), archives.glob("*.whl")
    code = "import sys; from pathlib import Path; from release import check_archives as check; "
    code += "check(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])"
    assert VERSION is not None
    run(sys.executable, "-c", code, str(sdist), str(wheel), VERSION[1], cwd=ROOT, PYTHONPATH=str(ROOT / "scripts"))


def test_sdist_contains_no_copies_of_linked_files(archives: Path) -> None:
    tops = {name.partition("/")[0] for name in list_sdist_files(archives)}
    assert tops & {"operators", "providers"} == set()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="sdists do not contain the links")
@pytest.mark.parametrize("link", ["operators", "providers"])
def test_top_level_links_are_relative_and_point_into_the_package(link: str) -> None:
    assert (ROOT / link).readlink() == Path("src/rxloop", link)
    assert (ROOT / link).is_dir()


def test_demo_of_the_installed_wheel_needs_no_optional_package(installed: Path, tmp_path: Path) -> None:
    # Modules set to None in sys.modules cannot be imported.
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); from rxloop.cli import main; main()"
    arguments = (sys.executable, "-c", code, "demo", "How warm is it in Oslo?")
    output = run(*arguments, cwd=tmp_path, PYTHONPATH=str(installed), ZAI_API_KEY="", OPENAI_API_KEY="")
    assert "get_weather call_2" in output
    assert (tmp_path / "chain.mmd").is_file()


def test_installed_wheel_works(installed: Path, tmp_path: Path) -> None:
    code = "import rxloop; print(rxloop.__file__, rxloop.__version__)"
    where, version = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).split()
    assert Path(where).is_relative_to(installed)
    assert VERSION is not None
    assert version == VERSION[1] == read_metadata(installed).version


def test_wheel_requirements_equal_the_project_file(installed: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert find_dependencies(read_metadata(installed)) == {
        parse_name(Requirement(line)) for line in project["dependencies"]
    }


def test_installation_has_at_most_fifteen_dependencies(required: set[str]) -> None:
    assert len(required) <= 15, sorted(required)


@pytest.fixture(scope="module")
def required(installed: Path) -> set[str]:
    """Names of all packages that an installation without extras contains, except rxloop."""
    found: set[str] = set()
    waiting = find_dependencies(read_metadata(installed))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= find_dependencies(distribution(name)) - found
    return found


def test_public_names_without_their_extra_raise_an_error_that_names_it(required: set[str], tmp_path: Path) -> None:
    optional = [
        module
        for module, packages in packages_distributions().items()
        if not {canonicalize_name(package) for package in packages} & {*required, "rxloop"}
    ]
    output = run(sys.executable, "-c", IMPORT_PUBLIC_NAMES, *optional, cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    extras = {line.split(": ", 1)[0]: re.findall(r"rxloop\[(\w+)\]", line) for line in output.splitlines()}
    assert extras == {
        "rxloop.PostgresEventLog": ["postgres"],
        "rxloop.runtime.PostgresQueue": ["postgres"],
        "rxloop.server": ["server"],
        "rxloop.server.core": ["server"],
        "rxloop.storage.PostgresArtifacts": ["postgres"],
    }, output


IMPORT_PUBLIC_NAMES = """
import sys
from importlib import import_module
from pkgutil import walk_packages

sys.modules.update(dict.fromkeys(sys.argv[1:]))

import rxloop
from rxloop import *

found = walk_packages(rxloop.__path__, "rxloop.", onerror=lambda name: None)
names = {"rxloop", "rxloop.server.core", *(package.name for package in found if package.ispkg)}
for package in sorted(name for name in names if not name.startswith("rxloop.cli")):
    name = package
    try:
        module = import_module(package)
        for export in getattr(module, "__all__", ()):
            name = f"{package}.{export}"
            value = getattr(module, export)
            if export.startswith("Postgres"):
                value("postgresql://localhost/agents")
    except rxloop.errors.ConfigurationError as error:
        print(f"{name}: {error}")
"""


def test_adapters_without_their_extras_can_be_imported_and_shown_but_not_used(tmp_path: Path) -> None:
    output = run(sys.executable, "-c", SHOW_ADAPTERS, cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    extras = {line.split(": ", 1)[0]: re.findall(r"rxloop\[(\w+)\]", line) for line in output.splitlines()}
    assert extras == {"a2a": ["a2a"], "agui": ["agui"], "mcp_server": ["mcp"]}, output


SHOW_ADAPTERS = """
import pydoc, sys

sys.modules.update(dict.fromkeys(["a2a", "ag_ui", "mcp", "mcp_types"]))

import rxloop.server
from rxloop.server import *

pydoc.render_doc(rxloop.server)
for name in ("api", "a2a", "agui", "mcp_server"):
    assert hasattr(rxloop.server, name)
for adapter in (a2a, agui, mcp_server):
    try:
        adapter(None)
    except rxloop.errors.ConfigurationError as error:
        print(f"{adapter.__name__}: {error}")
"""


def read_metadata(installed: Path) -> Distribution:
    [folder] = installed.glob("rxloop-*.dist-info")
    return PathDistribution(folder)


def find_dependencies(package: Distribution) -> set[str]:
    """Return the dependencies of a package on this machine, without extras."""
    requirements = [Requirement(line) for line in package.requires or ()]
    return {parse_name(need) for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})}


def parse_name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def test_importing_rxloop_needs_no_optional_package(tmp_path: Path) -> None:
    # Modules set to None in sys.modules cannot be imported.
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import rxloop; print('imported')"
    assert run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT / "src")) == "imported\n"


def test_importing_rxloop_loads_no_slow_modules(tmp_path: Path) -> None:
    # httpx imports rich and click if they are installed.
    code = "import sys, httpx; before = {*sys.modules}; import rxloop; print(*{*sys.modules} - before)"
    brought = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT / "src")).split()
    assert "rxloop" in brought
    heavy = {*OPTIONAL, "http", "multiprocessing", "sqlite3", "tkinter", "unittest"}
    assert {name.partition(".")[0] for name in brought} & heavy == set()
