"""Build and check the distributions of a release. The network is only used by pip.

1. Check that the tree is clean, and that the version agrees with CHANGELOG.md and CITATION.cff.
2. Build the sdist, the wheel from the sdist, and the wheel from the checkout, which must be identical.
3. Check files and metadata of both distributions.
4. Install the wheel into a new environment. Without extras, run `from rxloop import *` and the demo.
5. With extras, run all Python blocks of the README and `rxloop --version`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.metadata import Metadata
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[1]
README_EXTRAS = "cli,server"
"""Extras used by the Python blocks of the README."""
MAX_PACKAGES = 16
UNWANTED = re.compile(
    r"(^|/)(__pycache__|\.[a-z]+_cache|\.venv[^/]*|recordings|chain\.mmd)(/|$)|\.(pyc|db|db-shm|db-wal|log)$"
)


class ReleaseRefused(Exception):
    """Release with problems."""


def find_version_problems(version: str, changelog: str, citation: str) -> list[str]:
    """Compare the version of the package with the newest changelog section and the citation file."""
    problems: list[str] = []
    newest = re.search(r"^## \[(.+?)\](.*)$", changelog, re.MULTILINE)
    if newest is None or newest[1] != version or not re.fullmatch(r" - \d{4}-\d\d-\d\d", newest[2]):
        found = newest[0] if newest else "no section"
        problems.append(f"CHANGELOG.md must start with the section '## [{version}] - YYYY-MM-DD', got {found!r}")
    if f"\nversion: {version}\n" not in citation:
        problems.append(f"CITATION.cff must contain 'version: {version}'")
    return problems


def find_tree_problems(root: Path, version: str) -> list[str]:
    """Return uncommitted changes, and an existing tag of the version."""
    changes = run("git", "status", "--porcelain", cwd=root).splitlines()
    tags = run("git", "tag", "--list", f"v{version}", cwd=root).split()
    return [f"uncommitted change: {line}" for line in changes] + [f"the tag {tag} exists" for tag in tags]


def find_content_problems(files: Mapping[str, bytes], private_paths: Iterable[str]) -> list[str]:
    """Check a distribution for temporary files, and for absolute paths of this machine."""
    paths = {path.encode() for path in private_paths}
    return [
        *(f"unwanted file: {name}" for name in files if UNWANTED.search(name)),
        *(f"path of this machine in {name}" for name, data in files.items() if any(path in data for path in paths)),
    ]


def find_metadata_problems(data: bytes, version: str, readme: str) -> list[str]:
    """Check core metadata like a package index: valid fields, known classifiers, a readme and a licence."""
    try:
        metadata = Metadata.from_email(data, validate=True)
    except ExceptionGroup as errors:
        return [str(error) for error in errors.exceptions]
    values = {
        "version": (str(metadata.version), version),
        "description": ((metadata.description or "").strip(), readme.strip()),
        "description type": (metadata.description_content_type, "text/markdown"),
        "licence": (metadata.license_expression, "MIT"),
        "licence files": (metadata.license_files, ["LICENSE"]),
        "Python": (str(metadata.requires_python), ">=3.11"),
    }
    return [
        *(f"{name} must be {value!r}, got {got!r}" for name, (got, value) in values.items() if got != value),
        *(f"unknown classifier: {name}" for name in metadata.classifiers or () if name not in classifiers),
        *(f"{name} must not be empty" for name in ("summary", "keywords") if not getattr(metadata, name)),
    ]


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the content of a distribution by file name. Names do not contain the top-level folder of an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    files: dict[str, bytes] = {}
    with tarfile.open(path) as sdist:
        for member in sdist.getmembers():
            stream = sdist.extractfile(member)
            if stream is not None:
                files[member.name.partition("/")[2]] = stream.read()
    return files


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it. A wheel built from the checkout must have the same content."""
    command = (sys.executable, "-m", "build", "--no-isolation")
    run(*command, "--outdir", str(folder), cwd=ROOT)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with TemporaryDirectory() as temporary:
        run(*command, "--wheel", "--outdir", temporary, cwd=ROOT)
        [direct] = Path(temporary).glob("*.whl")
        if read_archive(direct) != read_archive(wheel):
            raise ReleaseRefused("the wheel built from the sdist differs from the wheel built from the checkout")
    return sdist, wheel


def check_archives(sdist: Path, wheel: Path, version: str) -> None:
    """Check files and metadata.

    Raises:
        ReleaseRefused: A distribution has problems.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    home = str(Path.home())
    private_paths = [f"{path}/" for path in (str(ROOT), home) if path != "/"]
    problems: list[str] = []
    for path, metadata in ((sdist, "PKG-INFO"), (wheel, f"rxloop-{version}.dist-info/METADATA")):
        files = read_archive(path)
        found = find_content_problems(files, private_paths) + find_metadata_problems(files[metadata], version, readme)
        problems += [f"{path.name}: {problem}" for problem in found]
    refuse(problems)


def check_installation(wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel, first without extras, and run its programs.

    Raises:
        ReleaseRefused: The installation contains too many packages, or a program fails.
    """
    folder.mkdir()
    with step("create an environment"):
        run(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = str(scripts / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    with step("install the wheel"):
        run(*pip, "install", "--quiet", str(wheel), cwd=folder)
        packages = {*run(*pip, "list", "--format", "freeze", cwd=folder).split()}
        packages = {name for name in packages if not name.startswith(("pip==", "setuptools=="))}
        if len(packages) > MAX_PACKAGES:
            raise ReleaseRefused(f"an installation must have at most {MAX_PACKAGES} packages, got {sorted(packages)}")
    with step("run `from rxloop import *` and the demo"):
        run(python, "-W", "error", "-c", "from rxloop import *", cwd=folder)
        if "conclusion" not in run(python, "-m", "rxloop", "demo", cwd=folder):
            raise ReleaseRefused("the demo printed no thoughts")
    with step(f"install the extras {README_EXTRAS}"):
        run(*pip, "install", "--quiet", f"{wheel}[{README_EXTRAS}]", cwd=folder)
    with step("run the README and `rxloop --version`"):
        run(python, str(ROOT / "tests/support/run_document.py"), str(ROOT / "README.md"), cwd=folder)
        printed = run(str(scripts / "rxloop"), "--version", cwd=folder).strip()
        if printed != f"rxloop {version}":
            raise ReleaseRefused(f"`rxloop --version` must print 'rxloop {version}', got {printed!r}")


def run(*command: str, cwd: Path) -> str:
    """Run a program and return its output.

    Raises:
        ReleaseRefused: The program failed.
    """
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise ReleaseRefused(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def refuse(problems: list[str]) -> None:
    """Raise an exception if problems exist.

    Raises:
        ReleaseRefused: Problems exist.
    """
    if problems:
        raise ReleaseRefused("\n".join(problems))


@contextmanager
def step(name: str) -> Generator[None]:
    """Print the name and the duration of a step."""
    print(f"{name} ... ", end="", flush=True)
    start = time.perf_counter()
    yield
    print(f"{time.perf_counter() - start:.0f} s")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("scripts/release", description="Build and check a release in dist/.")
    parser.add_argument("--rehearsal", action="store_true", help="accept uncommitted changes and an old changelog")
    is_rehearsal = parser.parse_args(arguments).rehearsal
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")}
    [version] = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "src/rxloop/_version.py").read_text("utf-8"), re.MULTILINE
    )
    problems = find_version_problems(version, *texts.values()) + find_tree_problems(ROOT, version)
    if is_rehearsal:
        print(*(f"ignored in a rehearsal: {problem}" for problem in problems), sep="\n")
    else:
        refuse(problems)
    dist = ROOT / "dist"
    for old in dist.glob("rxloop-*"):
        old.unlink()
    with step("build"):
        sdist, wheel = build(dist)
    with step("check files and metadata"):
        check_archives(sdist, wheel, version)
    with TemporaryDirectory() as temporary:
        check_installation(wheel, version, Path(temporary, "installation"))
    for path in (sdist, wheel):
        data = path.read_bytes()
        print(f"{path.relative_to(ROOT)}  {len(data) / 1e6:.1f} MB  sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ReleaseRefused as error:
        sys.exit(f"\n{error}")
