"""Adapters, access control and log of `rxloop serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import orjson
import pytest
from openai import OpenAI

from rxloop import ConfigurationError, MemoryEventLog
from rxloop.cli.service import open_runtime
from rxloop.cli.service.credentials import read_keys
from rxloop.cli.service.process import open_listener
from support.cli_workspace import Workspace
from support.terminals import LIMIT

KEY, OTHER = "ann-has-this-secret", "bob-has-another-one"
AGENTS = """
import gc

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.testing import ScriptedModel

one = Agent(ScriptedModel(*["It is warm."] * 9), name="weather")
several = {"weather": one, "clothes": Agent(ScriptedModel("A coat."))}
runtime = Runtime(several, log=MemoryEventLog())
number = 5
spared = Agent(ScriptedModel(lambda request: str(gc.get_freeze_count())), name="spared")


def made():
    return several


async def later():
    return several


def broken():
    raise KeyError("it broke")
"""


@pytest.fixture
def module(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Name of a module with agents in the current folder."""
    monkeypatch.delenv("RXLOOP_KEYS", raising=False)
    name = f"agents_{workspace.folder.name}".replace("-", "_")
    (workspace.folder / f"{name}.py").write_text(AGENTS, encoding="utf-8")
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("one", ["weather"]),
        ("several", ["weather", "clothes"]),
        ("runtime", ["weather", "clothes"]),
        ("made", ["weather", "clothes"]),
    ],
)
async def test_serve_accepts_agents_a_runtime_or_a_function(
    module: str, name: str, names: list[str], workspace: Workspace
) -> None:
    async with open_runtime(f"{module}:{name}", str(workspace.database)) as runtime:
        assert list(runtime.agents) == names
        assert isinstance(runtime.log, MemoryEventLog) == (name == "runtime")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("number", "must be an Agent, a dict of agents, a Runtime"),
        ("nothing", "missing attribute 'nothing' in "),
        ("later", "must be a synchronous function"),
        ("broken", "did not create an agent: KeyError: 'it broke'"),
    ],
)
def test_unsupported_object_is_reported(module: str, name: str, expected: str, workspace: Workspace) -> None:
    result = workspace.run("serve", f"{module}:{name}", "--port", "0", code=2)
    assert expected in result.stderr


def test_database_option_is_rejected_for_a_runtime(module: str, workspace: Workspace) -> None:
    result = workspace.run("serve", f"{module}:runtime", "--port", "0", "--db", "other.db", code=2)
    assert "--db cannot be used with" in result.stderr


def test_keys_are_read_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# people\n\nann = {KEY}\nann={KEY}-new==\n", encoding="utf-8")
    assert read_keys(file, f"bob={OTHER}, ") == {OTHER: "bob", KEY: "ann", f"{KEY}-new==": "ann"}
    assert read_keys(None, None) == {}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (KEY, "entry 1 must have the form NAME=KEY"),
        (f"={KEY}", "entry 1 must have the form NAME=KEY"),
        ("ann=ann-has-this", "at least 16"),
        (f"bob={OTHER},ann={KEY} {KEY}", "entry 2: the key of 'ann'"),
        (f"ann=ä{KEY}", "the key of 'ann'"),
        (f"ann={KEY},bob={KEY}", "'bob' and 'ann' must have different keys"),
    ],
)
def test_invalid_key_is_reported_and_never_shown(entry: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_keys(None, entry)
    assert expected in str(raised.value)
    assert KEY[3:] not in str(raised.value)


def test_keys_file_without_keys_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nobody yet\n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, output in (("keys", "must contain lines"), ("missing", "No such file"), ("bytes", "not UTF-8")):
        with pytest.raises(ConfigurationError, match=output):
            read_keys(tmp_path / name, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
def test_public_address_without_keys_is_an_error(module: str, workspace: Workspace, host: str) -> None:
    result = workspace.run("serve", f"{module}:one", "--host", host, code=2)
    assert "requires keys" in result.stderr
    result = workspace.run("serve", f"{module}:one", "--host", host, "--without-keys", "--mcp", code=2)
    assert "requires keys" in result.stderr


@contextmanager
def start_server(workspace: Workspace, *arguments: str, **env: str) -> Generator[tuple[str, list[dict[str, Any]]]]:
    """Start the command, yielding its URL and a list that receives its log lines on exit."""
    workspace.env |= env
    process = workspace.process("serve", *arguments, "--port", "0", "--json", stdin=subprocess.DEVNULL)
    lines: list[dict[str, Any]] = []
    errors: IO[bytes] | None = process.stderr
    assert errors is not None
    try:
        lines.append(orjson.loads(errors.readline()))
        yield lines[0]["url"], lines
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=LIMIT)
        lines += map(orjson.loads, rest.splitlines())
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_viewer_is_served_next_to_the_api(module: str, workspace: Workspace) -> None:
    with start_server(workspace, f"{module}:one", "--view", RXLOOP_KEYS=f"ann={KEY}") as (url, lines):
        assert "<title>rxloop</title>" in httpx.get(f"{url}/view/").text
        assert httpx.get(f"{url}/view/../runs").status_code == 401
    assert "the viewer at /view" in lines[0]["message"]


def test_server_without_keys_accepts_only_local_clients_and_origins(module: str, workspace: Workspace) -> None:
    with start_server(workspace, f"{module}:several", "--allow-origin", "https://app.example") as (url, lines):
        port = url.rpartition(":")[2]
        with httpx.Client(base_url=url) as client:
            assert [each["name"] for each in client.get("/agents").json()["agents"]] == ["weather", "clothes"]
            for name in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1"):
                assert client.get("/agents", headers={"host": name}).status_code == 200
            for header in ({"host": "rebound.example"}, {"host": ":"}, {"origin": "https://evil.example"}):
                assert client.get("/agents", headers=header).json()["error"]["code"] == "misdirected"
            page = client.get("/agents", headers={"origin": "https://app.example"})
            assert page.headers["access-control-allow-origin"] == "https://app.example"
            assert client.get("/agents", headers={"origin": "http://localhost:3000"}).status_code == 200
    [first, *_] = lines
    assert first["message"].startswith(
        f"Serving weather, clothes at {url} to this machine, without keys: the API at /; runs in "
    )


MCP_HEADERS = {"accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def test_garbage_collector_ignores_objects_of_startup(module: str, workspace: Workspace) -> None:
    with start_server(workspace, f"{module}:spared") as (url, _), httpx.Client(base_url=url) as client:
        run = client.post("/runs?wait=20", json={"input": "How many objects?"}).json()
    assert int(run["content"]) > 10_000, run


def ask(thread: str) -> dict[str, Any]:
    message = {"id": "m1", "role": "user", "content": "Well?"}
    rest = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": thread, "runId": "r1", "messages": [message], **rest}


def test_every_adapter_is_served_at_its_prefix(module: str, workspace: Workspace) -> None:
    flags = ("--agui", "--ui-stream", "--openai", "--a2a", "--mcp")
    with (
        start_server(workspace, f"{module}:one", *flags) as (url, lines),
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        page = {"id": "chat1", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Well?"}]}]}
        assert '"delta":"It is warm."' in http.post("/ui", json=page).text
        assert len(http.get("/ui/chat1").json()) == 2
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert [each.id for each in client.models.list()] == ["weather"]
            assert client.responses.create(model="weather", input="Well?").output_text == "It is warm."
        for path in ("/agui", "/agui/"):
            assert '"delta":"It is warm."' in http.post(path, json=ask(f"by{len(path)}")).text
        card = http.get("/a2a/.well-known/agent-card.json").json()
        assert {each["url"] for each in card["supportedInterfaces"]} == {f"{url}/a2a", f"{url}/a2a/rpc/"}
        assert '"serverInfo"' in http.post("/mcp", json=HELLO, headers=MCP_HEADERS).text
        assert len(http.get("/runs").json()["runs"]) == 4
        assert http.get("/nothing").json()["error"]["code"] == "not_found"
    adapters = "the API at /, AG-UI at /agui, UI message stream at /ui, OpenAI at /v1, A2A at /a2a, MCP at /mcp"
    assert adapters in lines[0]["message"]
    assert [each["watcher"] for each in lines if "watcher" in each][-1] == "agents"


def test_metrics_have_a_key_of_their_own(module: str, workspace: Workspace) -> None:
    key = "metrics-have-this-secret"
    (workspace.folder / "keys").write_text(f"ann={KEY}\nmetrics={key}\n", encoding="utf-8")
    with start_server(workspace, f"{module}:one", "--metrics", "--keys", "keys") as (url, lines):

        def get(path: str, token: str) -> httpx.Response:
            return httpx.get(f"{url}{path}", headers={"authorization": f"Bearer {token}"}, timeout=30)

        assert get("/runs", KEY).status_code == 200
        assert 'rxloop_runs{state="working"} 0.0' in get("/metrics", key).text
        assert [get("/metrics", KEY).status_code, get("/metrics", "wrong").status_code] == [403, 401]
        assert "require the metrics scope" in get("/metrics", KEY).text
        assert get("/runs", key).status_code == 401
    assert "metrics at /metrics" in lines[0]["message"]


def test_metrics_without_a_key_of_their_own_are_an_error(module: str, workspace: Workspace) -> None:
    (workspace.folder / "keys").write_text(f"ann={KEY}\n", encoding="utf-8")
    result = workspace.run("serve", f"{module}:one", "--metrics", "--keys", "keys", "--port", "0", code=2)
    assert "add metrics=KEY to the keys" in result.stderr


def test_single_agent_adapters_are_created_for_every_agent(module: str, workspace: Workspace) -> None:
    keys = {"RXLOOP_KEYS": f"ann={KEY}"}
    with (
        start_server(workspace, f"{module}:several", "--agui", **keys) as (url, lines),
        httpx.Client(base_url=url) as http,
    ):
        assert '"code":"unauthorized"' in http.post("/agui/clothes", json=ask("cold")).text
        http.headers["authorization"] = f"Bearer {KEY}"
        assert '"delta":"A coat."' in http.post("/agui/clothes", json=ask("cold")).text
        assert '"delta":"It is warm."' in http.post("/agui/weather", json=ask("warm")).text
        assert http.post("/agui", json=ask("who")).status_code == 404
    assert f"at {url} to ann: the API at /, AG-UI at /agui/weather and /agui/clothes; " in lines[0]["message"]


def test_log_contains_every_request_without_its_content(module: str, workspace: Workspace) -> None:
    with start_server(workspace, f"{module}:one", RXLOOP_KEYS=f"ann={KEY},bob={OTHER}") as (url, lines):
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as client:
            run = client.post("/runs?wait=10", json={"input": "My PIN is 4711"}).json()
            assert run["content"] == "It is warm."
            assert client.get("/healthz").status_code == 200
            client.headers["authorization"] = f"Bearer {OTHER}"
            assert client.get(f"/runs/{run['taskId']}").status_code == 404
            assert client.get("/runs", headers={"authorization": "Bearer 4711"}).status_code == 401
            assert client.post("/runs", json={"input": "PIN 4711", "agent": "4711"}).status_code == 404
    requests = [(each["method"], each["path"], each["status"]) for each in lines if each["logger"] == "rxloop.requests"]
    assert requests == [
        ("POST", "/runs", 200),
        ("GET", f"/runs/{run['taskId']}", 404),
        ("GET", "/runs", 401),
        ("POST", "/runs", 404),
    ]
    [end] = [each for each in lines if each["logger"] == "rxloop.runs"]
    assert end["task"] == run["taskId"]
    assert (end["level"], end["agent"], end["state"], end["model_calls"]) == ("info", "weather", "completed", 1)
    written = orjson.dumps(lines).decode()
    for secret in (KEY, OTHER, "PIN", "warm"):
        assert secret not in written
    assert all({"time", "level", "logger", "message"} <= {*each} for each in lines)
    assert [each["watcher"] for each in lines if "watcher" in each][-2:] == ["log", "agents"]


def test_log_without_json_is_plain_text(module: str, workspace: Workspace) -> None:
    process = workspace.process("serve", f"{module}:one", "--port", "0")
    assert process.stderr is not None
    assert b" Serving weather at http://127.0.0.1:" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert b" Shutdown step agents finished in " in rest


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_command_names_the_missing_extra(missing: str, module: str, workspace: Workspace) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from rxloop.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", f"{module}:one", "--port", "0"]
    env = {**os.environ, **workspace.env}
    done = subprocess.run(command, env=env, cwd=workspace.folder, capture_output=True, check=False, timeout=LIMIT)
    assert done.returncode == 2
    error = f'rxloop: rxloop serve needs {missing}, which is not installed: pip install "rxloop[serve]"\n'
    assert done.stderr.decode() == error


async def test_server_sends_small_packets_immediately() -> None:
    connections: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    with open_listener("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(lambda _, writer: connections.put_nowait(writer), sock=listener):
            _, client = await asyncio.open_connection(*listener.getsockname()[:2])
            connection = await connections.get()
            assert connection.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            connection.close()
            client.close()


def test_occupied_port_is_reported(module: str, workspace: Workspace) -> None:
    with start_server(workspace, f"{module}:one") as (url, _):
        result = workspace.run("serve", f"{module}:one", "--port", url.rpartition(":")[2], code=2)
    assert "cannot listen on 127.0.0.1" in result.stderr
