"""OpenAPI document of the HTTP API, compared with the server by schemathesis."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.server import ServerLimits, api, bearer
from rxloop.server.http.openapi import make_document
from rxloop.testing import ScriptedModel
from support.api_server import TOKENS, serve_app

EXAMPLES = os.environ.get("RXLOOP_SCHEMATHESIS")
"""Number of requests per operation and phase. With a number, the test also covers all boundaries of all schemas, which
takes a minute.
"""

CONFIG = """
# The document cannot express which tool schemas are valid, which events and calls a run has, and which parameters can
# be combined.
[[operations]]
include-name = [
    "POST /runs", "GET /runs", "POST /runs/{task_id}/fork", "POST /runs/{task_id}/resume", "GET /runs/{task_id}/state",
    "GET /runs/{task_id}/events"
]
checks.positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422, 429, 503]
"""


def make_runtime() -> Runtime:
    answers = ["Hello."] * 100_000
    return Runtime({"clerk": Agent(ScriptedModel(*answers), name="clerk")}, log=MemoryEventLog(), grace=0.2)


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="requires schemathesis (pip install schemathesis)"
)
async def test_schemathesis_finds_no_undocumented_behaviour(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    runtime = make_runtime()
    app = api(runtime, auth=bearer(TOKENS), limits=ServerLimits(runs=None), heartbeat=1)
    async with runtime, serve_app(app) as url:
        command = ["run", f"{url}/openapi.json", "-H", "Authorization: Bearer ann-key", "--checks", "all"]
        command += ["--max-examples", EXAMPLES or "3", "--seed", "1", "--request-timeout", "60", "--no-color"]
        command += [] if EXAMPLES else ["--phases", "fuzzing,stateful"]
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            *command,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_every_reference_of_the_document_is_defined() -> None:
    runtime = make_runtime()
    async with serve_app(api(runtime)) as url, httpx.AsyncClient(base_url=url) as client:
        document = (await client.get("/openapi.json")).json()
    names: list[str] = []

    def collect_references(part: Any) -> None:
        if isinstance(part, dict):
            names.extend(value for key, value in part.items() if key == "$ref")
            for each in part.values():
                collect_references(each)
        elif isinstance(part, list):
            for each in part:
                collect_references(each)

    collect_references(document)
    assert names
    assert {name.removeprefix("#/components/schemas/") for name in names} <= {*document["components"]["schemas"]}
    assert "bearer" not in str(document)


def test_fields_that_responses_never_omit_are_required() -> None:
    schemas = make_document(secured=False)["components"]["schemas"]
    assert schemas["RunPage"]["required"] == ["runs", "next"]
    assert "pending" not in schemas["RunInfo"]["required"]
    assert schemas["SendMessage"]["required"] == ["input"]
