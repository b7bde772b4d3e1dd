"""`rxloop doctor --check-network` at vendors that list their models in their own way."""

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
    """Answers a path with a JSON document, and keeps the headers that came; anything else is not found."""

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
def test_claude_is_listed_under_its_dated_names(workspace: Workspace, vendor: Vendor, path: str) -> None:
    vendor.documents["/v1/models?limit=1000"] = {"data": [{"id": "claude-sonnet-4-5-20250929"}]}
    env = {"ANTHROPIC_BASE_URL": vendor.url + path, "ANTHROPIC_API_KEY": "k"}
    said = workspace.run("doctor", "--check-network", "anthropic:claude-sonnet-4-5", code=0, **env).stdout
    assert f"✓ {vendor.url}/v1/models answers 200, in " in said
    assert (vendor.headers["x-api-key"], vendor.headers["anthropic-version"]) == ("k", "2023-06-01")
    other = workspace.run("doctor", "--check-network", "anthropic:claude-opus-5", code=0, **env).stdout
    assert "does not list 'claude-opus-5'" in other


def test_gemini_is_listed_in_googles_words(workspace: Workspace, vendor: Vendor) -> None:
    vendor.documents["/v1beta/models?pageSize=1000"] = {"models": [{"name": "models/gemini-3.5-flash"}]}
    env = {"GOOGLE_GEMINI_BASE_URL": vendor.url, "GOOGLE_API_KEY": "k"}
    said = workspace.run("doctor", "--check-network", "google", code=0, **env).stdout
    assert f"✓ {vendor.url}/v1beta/models answers 200, in " in said
    assert vendor.headers["x-goog-api-key"] == "k"


def test_what_an_address_asks_for_stays_in_it(workspace: Workspace, vendor: Vendor) -> None:
    vendor.documents["/v1/models?tenant=7"] = {"data": [{"id": "m"}]}
    said = workspace.run("doctor", "--check-network", f"{vendor.url}/v1?tenant=7#m").stdout
    assert f"✓ {vendor.url}/v1/models answers 200" in said


@pytest.mark.parametrize("document", [[], {}, {"data": 1}, {"models": [1]}, {"data": [{}]}])
def test_a_list_that_is_none_says_nothing_of_the_model(workspace: Workspace, vendor: Vendor, document: Any) -> None:
    vendor.documents["/v1/models"] = document
    said = workspace.run("doctor", "--check-network", f"{vendor.url}/v1#m").stdout
    assert f"✓ {vendor.url}/v1/models answers 200" in said
