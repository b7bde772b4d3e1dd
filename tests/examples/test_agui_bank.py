"""AG-UI example with a Node.js client."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest

from support.api_server import serve_app
from support.processes.services import CLIENTS, NODE

EXAMPLE = Path(__file__).parents[2] / "examples/agui_bank.py"


@pytest.mark.service("node-clients")
async def test_client_approves_the_payment() -> None:
    spec = importlib.util.spec_from_file_location("agui_bank", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with module.runtime, serve_app(module.app) as url:
        process = await asyncio.create_subprocess_exec(
            str(NODE),
            str(EXAMPLE.with_suffix("") / "client.mjs"),
            f"{url}/",
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_MODULES": str(CLIENTS)},
        )
        said, _ = await process.communicate()
    assert process.returncode == 0
    assert said.decode() == 'Call pay with amount: 20, to: "Ann"?\n[paid 20 to Ann]\nAnn has her 20.'
