"""FastAPI application with several users. Each user can only access their own runs.

Start the server with `uvicorn fastapi_users:site --app-dir examples`. As a script, this file simulates two users.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
from starlette.requests import HTTPConnection

from rxloop import Agent, MemoryEventLog, RunContext, RunRecord, Runtime, tool
from rxloop.server import Principal, api
from rxloop.testing import ScriptedModel, call

try:
    from fastapi import Depends, FastAPI, Form, HTTPException
except ImportError:
    sys.exit("This example needs FastAPI: pip install fastapi python-multipart")

PASSWORDS = {"ann": "blue", "bob": "green"}  # store hashes in a real application
ORDERS = {"ann": ["A1: a lamp"], "bob": ["B7: a chair"]}
sessions: dict[str, str] = {}


@dataclass
class User:
    """User data for tools."""

    name: str


@tool(read_only=True)
async def list_orders(ctx: RunContext[User]) -> list[str]:
    """List all orders of the current user."""
    return ORDERS[ctx.deps.name]


async def load_deps(record: RunRecord) -> User:
    """Create the deps based on the recorded owner, because clients cannot change it."""
    return User(record.owner or "")


# To use a real model, pass a model string such as "openai:gpt-5" instead.
model = ScriptedModel(call("list_orders"), "Those are your orders.")
clerk = Agent(model, tools=[list_orders], deps_type=User)
runtime = Runtime({"clerk": clerk}, log=MemoryEventLog(), deps=load_deps)


async def get_user(request: HTTPConnection) -> str:
    """Return the name of the logged-in user, for routes of the application."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token not in sessions:
        raise HTTPException(401, "log in first")
    return sessions[token]


async def auth(request: HTTPConnection) -> Principal | None:
    """Authenticate requests to the agent. The user becomes the owner of new runs."""
    try:
        return Principal(await get_user(request))
    except HTTPException:
        return None


agents = api(runtime, auth=auth)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Start the runtime with the application, and drain connections at shutdown."""
    async with runtime:
        yield
        await agents.drain(5)


site = FastAPI(lifespan=lifespan)


@site.post("/login")
async def login(name: Annotated[str, Form()], password: Annotated[str, Form()]) -> dict[str, str]:
    """Start a session."""
    if not secrets.compare_digest(PASSWORDS.get(name, "").encode(), password.encode()) or not password:
        raise HTTPException(401, "unknown user or wrong password")
    token = secrets.token_urlsafe()
    sessions[token] = name
    return {"token": token}


@site.get("/questions")
async def questions(user: Annotated[str, Depends(get_user)]) -> int:
    """Return the number of questions asked by the user."""
    return len(await runtime.log.list_runs(owner=user))


site.mount("/agents", agents)


async def main() -> None:
    """Start a run as Ann and check that other users cannot read it."""
    transport = httpx.ASGITransport(site)
    async with (
        site.router.lifespan_context(site),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):

        async def start_session(name: str) -> dict[str, Any]:
            response = await client.post("/login", data={"name": name, "password": PASSWORDS[name]})
            return {"authorization": f"Bearer {response.raise_for_status().json()['token']}"}

        ann, bob = await start_session("ann"), await start_session("bob")
        body = {"input": "What have I ordered?"}
        run = (await client.post("/agents/runs?wait=10", json=body, headers=ann)).raise_for_status().json()
        print(run["state"], run["content"])
        url = f"/agents/runs/{run['taskId']}"
        print(
            "Ann:",
            (await client.get(url, headers=ann)).status_code,
            (await client.get("/questions", headers=ann)).text,
        )
        print(
            "Bob:",
            (await client.get(url, headers=bob)).status_code,
            (await client.get("/questions", headers=bob)).text,
        )
        print("Not logged in:", (await client.get(url)).status_code)


if __name__ == "__main__":
    asyncio.run(main())
