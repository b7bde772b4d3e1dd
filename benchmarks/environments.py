"""Separate Python environments for other frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

CONTENDERS = {
    "pydantic-ai": "pydantic-ai-slim[openai]",
    "openai-agents": "openai-agents",
    "langgraph": "langgraph langchain-openai",
}
"""Minimal packages of each framework."""
_LIST = """
import importlib.metadata, json
print(json.dumps({each.name.lower(): each.version for each in importlib.metadata.distributions()}))
"""


class CannotInstall(Exception):
    """An environment cannot be created."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Python environment with a framework."""

    python: Path
    packages: dict[str, str]


def default_folder() -> Path:
    """Return the cache folder for environments."""
    from platformdirs import user_cache_path

    return user_cache_path("rxloop") / "benchmarks"


def environment(name: str, folder: Path, packages: str | None = None) -> Environment:
    """Return the environment of a framework, creating it if necessary.

    Args:
        name: Name of the framework.
        folder: Cache folder.
        packages: Packages to install. Defaults to those in `CONTENDERS`.

    Raises:
        CannotInstall: pip failed.
    """
    # Use a separate environment per Python version, so that all columns use the same version.
    home = folder / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    complete = home / "installed"
    requirements = (packages or CONTENDERS[name]).split()
    if not complete.exists() or complete.read_text().split() != requirements:
        print(f"installing {' '.join(requirements)} into {home}", file=sys.stderr)
        try:
            venv.create(home, clear=True, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            output: bytes = getattr(error, "stderr", None) or b""
            said = output.decode(errors="replace").strip() or str(error)
            raise CannotInstall(said.splitlines()[-1]) from error
        complete.write_text(" ".join(requirements))
    listed = subprocess.run([python, "-c", _LIST], check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, str] = json.loads(listed)
    return Environment(python, {each: found[each] for each in sorted(found) if each not in ("pip", "setuptools")})
