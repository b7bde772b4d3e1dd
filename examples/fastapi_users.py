"""A FastAPI application with users: each asks an agent over the mounted API, and sees nothing but runs of their own.

`uvicorn fastapi_users:site --app-dir examples` serves it. As a script, this plays two users.
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

PASSWORDS = {"ann": "blue", "bob": "green"}  # in a real application: hashed, in its database
ORDERS = {"ann": ["A1: a lamp"], "bob": ["B7: a chair"]}
sessions: dict[str, str] = {}


@dataclass
class User:
    """What tools may know of whoever asks."""

    name: str


@tool(read_only=True)
async def list_orders(ctx: RunContext[User]) -> list[str]:
    """The orders of the user."""
    return ORDERS[ctx.deps.name]


async def deps_of(record: RunRecord) -> User:
    """The owner stands in the log with the run: after a restart it is the same, whatever a client says."""
    return User(record.owner or "")


# A model by its name, such as "openai:gpt-5", in the place of the script.
model = ScriptedModel(call("list_orders"), "Those are your orders.")
clerk = Agent(model, tools=[list_orders], deps_type=User)
runtime = Runtime({"clerk": clerk}, log=MemoryEventLog(), deps=deps_of)


async def user_of(request: HTTPConnection) -> str:
    """Who asks, by the session in the header, for the routes of the application."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token not in sessions:
        raise HTTPException(401, "log in first")
    return sessions[token]


async def auth(request: HTTPConnection) -> Principal | None:
    """The same for the agents: the user is the owner of the runs."""
    try:
        return Principal(await user_of(request))
    except HTTPException:
        return None


agents = api(runtime, auth=auth)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Keep runs going while the application is there."""
    async with runtime:
        yield
        await agents.drain(5)


site = FastAPI(lifespan=lifespan)


@site.post("/login")
async def login(name: Annotated[str, Form()], password: Annotated[str, Form()]) -> dict[str, str]:
    """Begin a session."""
    if not secrets.compare_digest(PASSWORDS.get(name, "").encode(), password.encode()) or not password:
        raise HTTPException(401, "no such user, or another password")
    token = secrets.token_urlsafe()
    sessions[token] = name
    return {"token": token}


@site.get("/questions")
async def questions(user: Annotated[str, Depends(user_of)]) -> int:
    """How often the user has asked: the log knows, so nothing else has to."""
    return len(await runtime.log.list_runs(owner=user))


site.mount("/agents", agents)


async def main() -> None:
    """Ann asks; Bob looks for her run."""
    transport = httpx.ASGITransport(site)
    async with (
        site.router.lifespan_context(site),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):

        async def log_in(name: str) -> dict[str, Any]:
            answer = await client.post("/login", data={"name": name, "password": PASSWORDS[name]})
            return {"authorization": f"Bearer {answer.raise_for_status().json()['token']}"}

        ann, bob = await log_in("ann"), await log_in("bob")
        asked = {"input": "What have I ordered?"}
        run = (await client.post("/agents/runs?wait=10", json=asked, headers=ann)).raise_for_status().json()
        print(run["state"], run["content"])
        mine = f"/agents/runs/{run['taskId']}"
        print(
            "Ann:",
            (await client.get(mine, headers=ann)).status_code,
            (await client.get("/questions", headers=ann)).text,
        )
        print(
            "Bob:",
            (await client.get(mine, headers=bob)).status_code,
            (await client.get("/questions", headers=bob)).text,
        )
        print("nobody:", (await client.get(mine)).status_code)


if __name__ == "__main__":
    asyncio.run(main())
