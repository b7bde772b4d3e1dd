"""`rxloop doctor --check-network` with vendor-specific model lists."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import orjson
import pytest
from typing_extensions import override

from support.cli_workspace import Workspace


class Vendor(ThreadingHTTPServer):
    """HTTP server that returns a JSON document for a path, records headers, and otherwise responds with 404."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, Any] = {}
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Vendor  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        document = self.server.documents.get(self.path)
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(200 if document is not None else 404)
        self.end_headers()
        self.wfile.write(orjson.dumps(document))

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/v1"])
def test_claude_model_is_found_by_its_dated_name(workspace: Workspace, vendor: Vendor, path: str) -> None:
    vendor.documents["/v1/models?limit=1000"] = {"data": [{"id": "claude-sonnet-4-5-20250929"}]}
    env = {"ANTHROPIC_BASE_URL": vendor.url + path, "ANTHROPIC_API_KEY": "k"}
    output = workspace.run("doctor", "--check-network", "anthropic:claude-sonnet-4-5", code=0, **env).stdout
    assert f"✓ {vendor.url}/v1/models responded with 200 in " in output
    assert (vendor.headers["x-api-key"], vendor.headers["anthropic-version"]) == ("k", "2023-06-01")
    other = workspace.run("doctor", "--check-network", "anthropic:claude-opus-5", code=0, **env).stdout
    assert "does not list 'claude-opus-5'" in other


def test_gemini_model_list_is_parsed(workspace: Workspace, vendor: Vendor) -> None:
    vendor.documents["/v1beta/models?pageSize=1000"] = {"models": [{"name": "models/gemini-3.5-flash"}]}
    env = {"GOOGLE_GEMINI_BASE_URL": vendor.url, "GOOGLE_API_KEY": "k"}
    output = workspace.run("doctor", "--check-network", "google", code=0, **env).stdout
    assert f"✓ {vendor.url}/v1beta/models responded with 200 in " in output
    assert vendor.headers["x-goog-api-key"] == "k"


def test_query_of_the_url_is_kept(workspace: Workspace, vendor: Vendor) -> None:
    vendor.documents["/v1/models?tenant=7"] = {"data": [{"id": "m"}]}
    output = workspace.run("doctor", "--check-network", f"{vendor.url}/v1?tenant=7#m").stdout
    assert f"✓ {vendor.url}/v1/models responded with 200" in output


@pytest.mark.parametrize("document", [[], {}, {"data": 1}, {"models": [1]}, {"data": [{}]}])
def test_invalid_model_list_is_ignored(workspace: Workspace, vendor: Vendor, document: Any) -> None:
    vendor.documents["/v1/models"] = document
    output = workspace.run("doctor", "--check-network", f"{vendor.url}/v1#m").stdout
    assert f"✓ {vendor.url}/v1/models responded with 200" in output
