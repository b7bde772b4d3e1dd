import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rxloop.errors import ConfigurationError
from rxloop.tools.mcp import mcp, mcp_config
from rxloop.tools.mcp.options import Http, Stdio


def write_config(tmp_path: Path, servers: Any, key: str = "mcpServers") -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({key: servers}))
    return path


def test_common_configuration_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "planted-0451")
    path = write_config(
        tmp_path,
        {
            "github": {"command": "npx", "args": ["-y", "gh-${env:SHOP_TOKEN}"], "env": {"TOKEN": "${SHOP_TOKEN}"}},
            "web": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Key": "Bearer ${SHOP_TOKEN}"}},
            "old": {"command": "x", "disabled": True},
            "local": {"command": "uvx", "cwd": "${NOWHERE:-/tmp}", "args": ["a", 8000]},
        },
    )
    github, web, local = mcp_config(path, only=["a"])
    assert [each.name for each in (github, web, local)] == ["github", "web", "local"]
    assert github.address == Stdio("npx", ("-y", "gh-planted-0451"), {"TOKEN": "planted-0451"})
    assert web.address == Http("https://x.example/mcp", {"X-Key": "Bearer planted-0451"})
    assert local.address == Stdio("uvx", ("a", "8000"), {}, "/tmp")
    assert github.options.only == {"a"}
    assert "planted-0451" not in repr([github, web, local])
    assert len(mcp_config(write_config(tmp_path, {"a": {"url": "https://x.example"}}, "servers"))) == 1


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (
            {"a": {"command": "x", "env": {"K": "${UNSET_0451}"}}},
            r"env, K refers to \$\{UNSET_0451\}, which is not set",
        ),
        ({"a": {"type": "sse", "url": "https://x.example"}}, "old SSE"),
        ({"a": {"args": []}}, '"command" or "url"'),
        ({"a": {"type": "http", "command": "x"}}, 'matching "type"'),
        ({"a": 1}, "must be an object"),
        ({"a": {"command": "x", "args": "y"}}, '"args" must be a list'),
        ({"a": {"command": ["x"]}}, "command must be a string"),
        ([], 'must have "mcpServers"'),
    ],
)
def test_invalid_configuration_is_an_error(tmp_path: Path, servers: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mcp_config(write_config(tmp_path, servers))


def test_missing_or_invalid_json_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        mcp_config(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not JSON"):
        mcp_config(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match="is not JSON"):
        mcp_config(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (("npx", "-y", "@modelcontextprotocol/server-everything@2026.8.31"), "everything"),
        (("uvx", "mcp-server-git"), "git"),
        (("docker", "run", "-i", "-e", "TOKEN=planted-0451", "mcp/fetch"), "fetch"),
        (("python", "-m", "mcp_server_time"), "time"),
        (("node", "/opt/my tools/weather.js"), "weather"),
        (("/usr/bin/github-mcp-server", "stdio"), "github"),
        (("https://mcp.linear.app/mcp",), "linear"),
        (("https://api.githubcopilot.com/mcp/",), "githubcopilot"),
        (("http://127.0.0.1:8000/mcp",), "server"),
        (("http://localhost/mcp",), "localhost"),
    ],
)
def test_server_name_is_derived_from_its_address(address: tuple[str, ...], name: str) -> None:
    assert mcp(*address).name == name


def test_sdk_is_imported_when_a_server_is_used() -> None:
    code = (
        "import sys; from rxloop.tools.mcp import mcp; mcp('npx', 'x'); "
        "assert not {'mcp', 'mcp_types', 'httpx2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_sdk_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.tools.mcp.server.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"not installed; pip install 'rxloop\[mcp\]'"):
        mcp("npx", "x")
