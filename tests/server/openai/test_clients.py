"""Generated runs with the official Python and npm clients, which must have the content of the log."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from openai import AsyncOpenAI

from rxloop import Runtime
from rxloop.errors import ConflictError
from support.api_server import TRUSTED
from support.clients.openai import OpenAIEndpoint, serve_openai
from support.faulty_components import PLANTED
from support.processes.services import CLIENTS, NODE
from support.random_runs import NAME, SHOW_MAP, RandomRun, random_run, silence_logs
from support.vendors.openai_checks import Json, check_response

RUNS = int(os.environ.get("RXLOOP_OPENAI_RUNS", "12"))
TOOLS: list[Any] = [{"type": "function", "strict": False, **SHOW_MAP}]
CHECKED = settings(
    max_examples=RUNS,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def make_answers(output: list[Any], *, declines: bool) -> list[Any] | None:
    """Return answers to all questions of a response, or None if it has no answerable question."""
    approvals = {item["id"] for item in output if item["type"] == "mcp_approval_request"}
    items: list[Any] = []
    for item in output:
        if item["type"] == "mcp_approval_request":
            items.append({"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": not declines})
        elif item["type"] == "function_call":
            output_text = '{"error": "no map here"}' if declines else '{"shown": true}'
            items.append({"type": "function_call_output", "call_id": item["call_id"], "output": output_text})
        elif item["type"] == "message" and item["id"].startswith("msg_mcpr_"):
            text, call_id = item["content"][0]["text"], item["id"].removeprefix("msg_")
            if "github" in text:
                return None
            if call_id.split(":response:")[0] not in approvals:
                output_text = "a" if text.startswith("Which?") else '{"city": "Oslo", "nights": 2}'
                items.append({"type": "function_call_output", "call_id": call_id, "output": output_text})
    return items or None


async def read_with_python(client: AsyncOpenAI, kind: RandomRun, *, background: bool) -> list[Json]:
    """Read all responses of a run with the Python client."""
    responses: list[Json] = []
    body: dict[str, Any] | None = {"input": "Go."}
    while body is not None and len(responses) < 8:
        try:
            async with client.responses.stream(model=NAME, tools=TOOLS, background=background, **body) as stream:
                events = [event async for event in stream]
        except openai.ConflictError:
            # Canceled runs reject answers.
            assert responses
            assert kind.cancel_after is not None
            break
        # `get_final_response` accepts only completed responses.
        final: Any = events[-1]
        output = final.response.to_dict()["output"]
        numbers = [event.sequence_number for event in events]
        responses.append(
            {
                "id": final.response.id,
                "status": final.response.status,
                "text": final.response.output_text,
                "output": output,
                "numbers": numbers,
            }
        )
        answers = make_answers(output, declines=kind.declines) if final.response.status == "completed" else None
        body = None if answers is None else {"input": answers, "previous_response_id": final.response.id}
    return responses


async def disturb(kind: RandomRun, runtime: Runtime) -> None:
    """Cancel the run or send a message to it at the generated event."""
    number = 0
    async for event in runtime.events:
        number += 1
        if number == kind.cancel_after:
            with suppress(ConflictError):
                await runtime.cancel(event.root_task_id, "enough")


async def check(served: OpenAIEndpoint, responses: list[Json], *, background: bool) -> None:
    async with served.client() as client:
        for each in responses:
            assert each["numbers"] == [*range(len(each["numbers"]))]
            stored = await client.responses.retrieve(each["id"])
            check_response(stored.to_dict())
            assert stored.status == each["status"]
            assert stored.output_text == each["text"]
            assert [item.id for item in stored.output] == [item["id"] for item in each["output"]]
            if background:
                again = await client.responses.retrieve(each["id"], stream=True)
                assert [event.sequence_number async for event in again] == each["numbers"]
    assert PLANTED not in json.dumps(responses)


async def check_with_server(kind: RandomRun, read: Any, *, background: bool) -> None:
    async with serve_openai(kind.agent(), log=kind.log(), auth=TRUSTED) as served:
        disturbing = asyncio.create_task(disturb(kind, served.runtime))
        responses = await asyncio.wait_for(read(served), 60)
        disturbing.cancel()
        assert responses
        await check(served, responses, background=background)


@CHECKED
@given(kind=random_run())
def test_python_client_reads_generated_runs(kind: RandomRun) -> None:
    background = kind.keeps_deltas

    async def read(served: OpenAIEndpoint) -> list[Json]:
        async with served.client() as client:
            return await read_with_python(client, kind, background=background)

    with silence_logs():
        asyncio.run(check_with_server(kind, read, background=background))


@pytest.fixture(scope="module")
def node() -> Generator[subprocess.Popen[str]]:
    """Process for all runs."""
    script = Path(__file__).with_name("client.mjs")
    command = [NODE or "node", str(script), str(CLIENTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.service("node-clients")
@CHECKED
@given(kind=random_run())
def test_npm_client_reads_generated_runs(node: subprocess.Popen[str], kind: RandomRun) -> None:
    assert node.stdin is not None
    assert node.stdout is not None
    stdin, stdout = node.stdin, node.stdout
    background = kind.keeps_deltas

    async def read(served: OpenAIEndpoint) -> list[Json]:
        request = {"base": f"{served.url}/v1", "model": NAME, "tools": TOOLS, "declines": kind.declines}
        request["cancels"] = kind.cancel_after is not None
        stdin.write(json.dumps({**request, "background": background}) + "\n")
        stdin.flush()
        answer = json.loads(await asyncio.to_thread(stdout.readline))
        assert "error" not in answer, answer["error"]
        return answer["responses"]

    with silence_logs():
        asyncio.run(check_with_server(kind, read, background=background))
