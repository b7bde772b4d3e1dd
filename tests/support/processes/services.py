"""Optional programs and servers. Tests that need a missing service are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.postgres import server as postgres
from support.processes import disks, hosts

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

AXE = Path(__file__).parents[3] / "build/viewer/node_modules/axe-core/axe.min.js"
"""Accessibility checker installed by `scripts/viewer`."""


@cache
def mermaid_file() -> Path:
    """Return the path of the Mermaid browser bundle installed by npm."""
    npm = shutil.which("npm")
    root = subprocess.run([npm, "root", "--global"], check=False, capture_output=True, text=True) if npm else None
    return Path(root.stdout.strip() if root else "nowhere") / "mermaid/dist/mermaid.min.js"


MCP_SERVERS = Path(os.environ.get("RXLOOP_MCP_SERVERS") or Path.home() / ".cache/rxloop/mcp-servers")
"""Folder of the third-party MCP servers installed by `scripts/mcp-servers`."""


def mcp_program(name: str) -> Path:
    """Return the path of a third-party MCP server."""
    found = (MCP_SERVERS / folder / name for folder in ("node_modules/.bin", "venv/bin"))
    return next((path for path in found if path.exists()), MCP_SERVERS / name)


CLIENTS = Path(os.environ.get("RXLOOP_CLIENTS") or Path.home() / ".cache/rxloop/clients")
"""Folder of the official protocol clients installed by `scripts/clients`."""

COPILOTKIT = CLIENTS / "copilotkit"
"""Folder of CopilotKit with the older AG-UI client that it uses."""

A2A_TCK = Path(os.environ.get("RXLOOP_A2A_TCK") or Path.home() / ".cache/rxloop/a2a-tck")
"""Checkout of a2aproject/a2a-tck (branch 1.0-dev), including its environment in `venv`."""

NODE = shutil.which("node")

REDIS = os.environ.get("RXLOOP_REDIS") or "redis://127.0.0.1:6379/0"
"""URL of the Redis server. Tests use keys with a prefix of their own, and remove them."""


@cache
def is_redis_available() -> bool:
    """Return True if the Redis server and its client are available."""
    if find_spec("redis") is None:
        return False
    import redis

    try:
        with redis.Redis.from_url(REDIS, socket_timeout=2, socket_connect_timeout=2) as client:  # pyright: ignore[reportUnknownMemberType]
            return bool(client.ping())  # pyright: ignore[reportUnknownMemberType]
    except redis.RedisError:
        return False


SERVICES: dict[str, tuple[Callable[[], bool], str]] = {
    "chromium": (
        lambda: CHROMIUM is not None and find_spec("playwright") is not None,
        "there is no Chromium (Debian: apt-get install chromium) or no Playwright (pip install playwright)",
    ),
    "axe": (AXE.is_file, "there is no axe-core (scripts/viewer installs it)"),
    "mermaid": (lambda: mermaid_file().is_file(), "there is no Mermaid (npm install --global mermaid@11)"),
    "mcp-servers": (
        lambda: mcp_program("mcp-server-everything").exists() and mcp_program("mcp-server-time").exists(),
        "there are no third-party MCP servers (scripts/mcp-servers)",
    ),
    "mcp-conformance": (
        lambda: mcp_program("conformance").exists() and mcp_program("node").exists(),
        "there is no conformance suite of MCP (scripts/mcp-servers)",
    ),
    "a2a-tck": (
        lambda: (A2A_TCK / "run_tck.py").is_file() and (A2A_TCK / "venv/bin/python").exists(),
        "there are no official tests of A2A (a2aproject/a2a-tck in RXLOOP_A2A_TCK, with a venv of its own)",
    ),
    "hosts": (
        hosts.is_supported,
        "no network namespaces can be made: it takes root, /dev/net/tun and ip (Debian: apt-get install iproute2)",
    ),
    "small-disks": (disks.is_supported, "no small disk can be mounted: it takes root, and mount"),
    "postgres": (postgres.is_available, "there is no PostgreSQL (Debian: apt-get install postgresql)"),
    "redis": (is_redis_available, "there is no Redis with its client (redis-server, and pip install redis)"),
    "node-clients": (
        lambda: NODE is not None and all((each / ".installed").is_file() for each in (CLIENTS, COPILOTKIT)),
        "there is no node with the official clients of the server's protocols (scripts/clients)",
    ),
}
"""Check and skip message of each service. `@pytest.mark.service(name)` marks a test that needs one."""

_ran: Counter[str] = Counter()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose service is missing."""
    for mark in item.iter_markers("service"):
        (name,) = mark.args
        there, missing = SERVICES[name]
        if not there():
            pytest.skip(missing)
        item.user_properties.append(("service", name))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count tests from their reports, because pytest-xdist runs them in other processes."""
    if report.when == "setup":
        _ran.update(str(name) for what, name in report.user_properties if what == "service")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests ran per service."""
    if _ran:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(_ran.items()))
        terminalreporter.write_line(f"tests of services that ran: {counts}")
