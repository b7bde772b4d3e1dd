"""Commands for installing rxloop with extras, and checks of installed packages."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rxloop.errors import ConfigurationError


def make_install_command(extra: str) -> str:
    """Return the command that installs an extra from the origin of the installed package."""
    try:
        origin = metadata.distribution("rxloop").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = None
    return format_install_command(extra, origin)


def is_from_index() -> bool:
    """Return whether the installed package comes from a package index, where projects find it by name."""
    return make_install_command("cli") == format_install_command("cli", None)


def format_install_command(extra: str, origin: str | None) -> str:
    """Format the command that installs an extra.

    Args:
        extra: Name of the extra.
        origin: Content of `direct_url.json` (PEP 610) for folders, archives and repositories, or None for an index.
    """
    if origin is None:
        return f'pip install "rxloop[{extra}]"'
    details: dict[str, Any] = json.loads(origin)
    url = str(details["url"])
    if "dir_info" in details and url.startswith("file:"):
        editable = "-e " if details["dir_info"].get("editable") else ""
        return f'pip install {editable}"{url2pathname(urlsplit(url).path)}[{extra}]"'
    if vcs := details.get("vcs_info", {}).get("vcs"):
        url = f"{vcs}+{url}"
    return f'pip install "rxloop[{extra}] @ {url}"'


def check_server_packages(feature: str) -> None:
    """Check that the packages of the HTTP server are installed.

    Args:
        feature: Command or option that needs the server.

    Raises:
        ConfigurationError: Starlette or uvicorn is not installed.
    """
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigurationError(f'{feature} needs {package}, which is not installed: pip install "rxloop[serve]"')
