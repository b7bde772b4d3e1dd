"""Response headers, API path and build of the viewer page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import MemoryEventLog, Runtime
from rxloop.cli.commands.view import create_viewer
from rxloop.errors import ConfigurationError
from rxloop.server import api, bearer, viewer

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src/rxloop/server/viewer/page"
PACKAGES = ROOT / "build/viewer/node_modules"


def make_client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_policy_names_the_hashes_of_the_script_and_the_style() -> None:
    async with make_client(viewer(Runtime({}, log=MemoryEventLog()))) as client:
        response = await client.get("/")
    policy = dict(each.split(" ", 1) for each in response.headers["content-security-policy"].split("; "))
    for name in ("script", "style"):
        [(_, body)] = re.findall(rf"<{name}( [^>]*)?>(.*?)</{name}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert policy.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


async def test_page_has_the_headers_of_a_separate_document() -> None:
    async with make_client(viewer(Runtime({}, log=MemoryEventLog()))) as client:
        response = await client.get("/")
    expected = {
        "content-type": "text/html; charset=utf-8",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
    }
    assert {name: response.headers[name] for name in expected} == expected


async def test_unchanged_page_is_not_sent_again() -> None:
    async with make_client(viewer(Runtime({}, log=MemoryEventLog()))) as client:
        etag = (await client.get("/")).headers["etag"]
        response = await client.get("/", headers={"if-none-match": f'"other", W/{etag}'})
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["content-security-policy"]


async def test_page_is_public_and_its_api_is_not() -> None:
    runtime = Runtime({}, log=MemoryEventLog())
    auth = bearer({"ann-key": "ann"})
    routes = [Mount("/view", viewer(runtime, auth=auth)), Mount("/", api(runtime, auth=auth))]
    async with runtime, make_client(Starlette(routes=routes)) as client:
        assert (await client.get("/view/")).status_code == 200
        assert (await client.get("/runs")).status_code == 401
        assert (await client.post("/view/")).status_code == 405


async def test_page_contains_the_address_of_the_api() -> None:
    async with make_client(viewer(Runtime({}, log=MemoryEventLog()), api="/api/v2/")) as client:
        assert '<meta name="rxloop-api" content="/api/v2/">' in (await client.get("/")).text


@pytest.mark.parametrize("address", ["", "/api", "https://example.org/", "//example.org", '"><script>/'])
def test_address_of_another_server_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="api must be a relative or absolute path ending with a slash"):
        viewer(Runtime({}, log=MemoryEventLog()), api=address)


@pytest.mark.parametrize("address", ["//example.org/", "/a//b/"])
def test_address_with_two_slashes_is_refused(address: str) -> None:
    # Browsers read an address that starts with two slashes as another host.
    with pytest.raises(ConfigurationError, match="api must be a relative"):
        viewer(Runtime({}, log=MemoryEventLog()), api=address)


async def test_view_refuses_changes_and_foreign_host_names() -> None:
    async with Runtime({}, log=MemoryEventLog()) as runtime:
        app, _ = create_viewer(runtime)
        async with make_client(app) as client:
            assert (await client.get("/runs")).json() == {"runs": [], "next": None}
            refused = await client.post("/runs", json={"input": "Hello."})
            foreign = await client.get("/runs", headers={"host": "example.org"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
    assert foreign.status_code == 421


def test_sources_never_insert_markup() -> None:
    for path in SOURCES.rglob("*.ts*"):
        if "node_modules" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for word in ("dangerouslySetInnerHTML", "innerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, path


@pytest.mark.skipif(not PACKAGES.is_dir(), reason="the npm packages of the viewer are not installed (scripts/viewer)")
@pytest.mark.parametrize("option", ["--check", "--test"])
async def test_built_page_equals_its_sources_and_their_tests_pass(option: str) -> None:
    script = ROOT / "scripts/viewer"
    done = await asyncio.to_thread(
        subprocess.run, [script, option], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
